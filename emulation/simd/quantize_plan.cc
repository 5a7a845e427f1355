// Which path is exact for which format.
//
//   kMagic: adding c = 1.5 * 2^k, k = max(e, emin) + 23 - M, leaves M fraction bits of x. The sum
//   stays inside c's binade as long as |x| < 2^(e+1) <= 2^(k-1), that is M <= 21; and c must be a
//   float for every finite x that does not overflow, which needs an exponent field below FP32's.
#include "emulation/simd/quantize_plan.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace lockstep {
namespace {

constexpr int kFloatBias = 127;
constexpr int kFloatExponentBits = 8;
constexpr int kFloatPrecision = 24;
constexpr int kMagicMaxFractionBits = 21;

// Limits beyond FP32's own never bind: they count as its largest number.
uint32_t limit_bits(double x) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  return std::bit_cast<uint32_t>(static_cast<float>(std::min(x, kLargest)));
}

RoundPath choose_path(const QuantizeSpec& spec) {
  const Format& f = *spec.format;
  if (spec.measure_only) return RoundPath::kIdentity;
  if (f.exponent_bits > kFloatExponentBits || f.precision > kFloatPrecision) {
    return RoundPath::kScalar;
  }
  const bool wide = f.exponent_bits == kFloatExponentBits;
  if (wide && (f.emin != 1 - kFloatBias || !f.has_subnormals)) return RoundPath::kScalar;
  if (f.is_fp32() && f.has_infinity) return RoundPath::kIdentity;
  if (spec.rounding != Rounding::kNearestEven) return RoundPath::kGeneric;
  if (wide) return RoundPath::kInteger;
  const bool magic = f.has_subnormals && f.precision - 1 <= kMagicMaxFractionBits;
  return magic ? RoundPath::kMagic : RoundPath::kGeneric;
}

}  // namespace

QuantizePlan::QuantizePlan(const QuantizeSpec& spec)
    : path(choose_path(spec)), rounding(spec.rounding) {
  if (path == RoundPath::kScalar) return;
  const Format& f = *spec.format;
  wide_exponent = f.exponent_bits == kFloatExponentBits;
  fraction_bits = f.precision - 1;
  emin_field = static_cast<uint32_t>(f.emin + kFloatBias);
  subnormal_step_up = f.has_subnormals ? 0 : static_cast<uint32_t>(fraction_bits);
  max_finite = limit_bits(f.max_finite);
  min_normal = std::max(limit_bits(f.min_normal()), 1u);  // zero counts as below it, always
  if (path == RoundPath::kIdentity) return;
  // What is beyond the format is decided by the definition, not here.
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kHuge = std::numeric_limits<double>::max();
  constexpr uint32_t kMagnitude = 0x7fffffff;
  const auto magnitude = [&](double x) {
    return std::bit_cast<uint32_t>(static_cast<float>(round_to_format(x, f, rounding))) &
           kMagnitude;
  };
  from_infinity = magnitude(kInfinity);
  overflow_positive = magnitude(kHuge);
  overflow_negative = magnitude(-kHuge);
  if (rounding == Rounding::kStochastic) random = derive_array_key(spec.key);
}

}  // namespace lockstep
