// Computes the bits of floats from a format's row. Results beyond the finite numbers come from the
// definition (emulation/format/rounding.h).
#include "emulation/format/float_format.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace lockstep {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kHuge = std::numeric_limits<double>::max();

// Limits beyond FP32's own count as its largest number.
uint32_t limit_bits(double x) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  return std::bit_cast<uint32_t>(static_cast<float>(std::min(x, kLargest)));
}

uint32_t rounded_magnitude(double x, const Format& format, Rounding rounding) {
  const auto rounded = static_cast<float>(round_to_format(x, format, rounding));
  return std::bit_cast<uint32_t>(rounded) & ~kFloatSignBit;
}

// The largest bits below `least` that become zero.
uint32_t to_zero(uint32_t least, bool negative, Rounding rounding) {
  constexpr uint32_t kOneBinade = 1u << kFloatFractionBits;
  const uint32_t half = least - kOneBinade, all = least - 1;
  switch (rounding) {
    case Rounding::kNearestEven:
      return half;
    case Rounding::kNearestAway:
      return half - 1;
    case Rounding::kUp:
      return negative ? all : 0;
    case Rounding::kDown:
      return negative ? 0 : all;
    case Rounding::kOdd:
      return 0;
    case Rounding::kTowardZero:
    case Rounding::kStochastic:
      break;
  }
  return all;
}

}  // namespace

FloatFormat::FloatFormat(const Format& format, Rounding rounding)
    : max_finite(limit_bits(format.max_finite)),
      min_normal(std::max(limit_bits(format.min_normal()), 1u)) {  // always above zero
  if (format.exponent_bits > kFloatExponentBits || format.precision > kFloatPrecision) return;
  drop = static_cast<uint32_t>(kFloatPrecision - format.precision);
  if (format.subnormals == SubnormalRule::kFlushIn) flush_in_below = min_normal;
  if (format.subnormals == SubnormalRule::kFlushOut) flush_out_below = min_normal;
  unsigned_zero = !format.has_negative_zero;
  from_infinity = rounded_magnitude(kInfinity, format, rounding);
  overflow_positive = rounded_magnitude(kHuge, format, rounding);
  overflow_negative = rounded_magnitude(-kHuge, format, rounding);
  if (format.exponent_bits == kFloatExponentBits) return;
  emin_field = static_cast<uint32_t>(format.emin + kFloatBias);
  const uint32_t least_field = emin_field - static_cast<uint32_t>(format.precision - 1);
  least = least_field << kFloatFractionBits;
  lowest_binade = (least_field & 1) != 0 ? 0 : 1u << kFloatFractionBits;
  to_zero_positive = to_zero(least, false, rounding);
  to_zero_negative = to_zero(least, true, rounding);
}

}  // namespace lockstep
