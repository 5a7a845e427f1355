// The definition of rounding, on the bits of a double:
//   1. NaN: the one positive quiet NaN, so that no bit of it depends on its origin.
//      Infinity: itself, max_finite (kSaturate) or NaN (kNan). Zero: itself, +0 if the format has
//      no -0. With kFlushIn every |x| < 2^emin counts as a zero.
//   2. x = significand * 2^(e-52) with a 53-bit integer significand.
//   3. quantum 2^q of the format around x: q = max(e, emin) - (p-1).
//   4. kept = floor(significand / 2^(q-e+52)); the dropped bits and the mode decide if 1 is added.
//   5. kept * 2^q beyond max_finite overflows (IEEE 754-2019 §7.4): modes that round away from
//      zero on that side give infinity (NaN by OverflowRule::kNan), the others max_finite. kOdd
//      gives max_finite, whatever its last bit (fp8_e4m3's 448 = S.1111.110 is even). Rounding it
//      again is safe only to formats of a smaller range. kSaturate always gives max_finite.
//   6. With kFlushOut a result below 2^emin becomes zero. A zero has x's sign if the format has -0.
//      x86's FTZ tests x rounded to p bits at any exponent instead: to nearest it also flushes
//      [1 - 2^-p, 1 - 2^-(p+1)) 2^emin, which becomes 2^emin here.
#include "emulation/format/rounding.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "emulation/format/power_of_two.h"
#include "src/core/error.h"
#include "src/core/find_row.h"
#include "src/core/random.h"

namespace lockstep {
namespace {

constexpr RoundingInfo kRoundings[] = {
    {Rounding::kNearestEven, "nearest_even", "to nearest, ties to the even last bit (RNE)"},
    {Rounding::kNearestAway, "nearest_away", "to nearest, ties away from zero (RNA)"},
    {Rounding::kTowardZero, "toward_zero", "the neighbour nearer to zero: truncation (RZ)"},
    {Rounding::kUp, "up", "toward +infinity (RU)"},
    {Rounding::kDown, "down", "toward -infinity (RD)"},
    {Rounding::kOdd, "odd",
     "exact, or the neighbour whose last bit is odd (beyond max_finite: max_finite); safe to round "
     "again to fewer bits and a smaller range"},
    {Rounding::kStochastic, "stochastic",
     "up with probability (distance below) / ulp, random bits keyed by seed, stream, step, site "
     "and element"},
};

constexpr int kFractionBits = 52;
constexpr int kBias = 1023;
constexpr uint64_t kImplicitBit = uint64_t{1} << kFractionBits;
constexpr uint64_t kFractionMask = kImplicitBit - 1;

constexpr double kQuietNan = std::numeric_limits<double>::quiet_NaN();

// The result for a number beyond the finite ones, by the direction of rounding.
double overflow(bool negative, const Format& format, Rounding rounding) {
  const double largest = negative ? -format.max_finite : format.max_finite;
  const bool stays_finite = rounding == Rounding::kTowardZero || rounding == Rounding::kOdd ||
                            (rounding == Rounding::kUp && negative) ||
                            (rounding == Rounding::kDown && !negative);
  if (format.overflow == OverflowRule::kSaturate || stays_finite) return largest;
  if (format.overflow == OverflowRule::kNan) return kQuietNan;
  const double infinity = std::numeric_limits<double>::infinity();
  return negative ? -infinity : infinity;
}

double from_infinity(double x, const Format& format) {
  if (format.overflow == OverflowRule::kInfinity) return x;
  if (format.overflow == OverflowRule::kNan) return kQuietNan;
  return std::copysign(format.max_finite, x);
}

double signed_zero(bool negative, const Format& format) {
  return negative && format.has_negative_zero ? -0.0 : 0.0;
}

// Right shifts by any count >= 0.
uint64_t shift_right(uint64_t value, int count) {
  return count >= 64 ? 0 : value >> count;
}
uint64_t low_part(uint64_t value, int count) {
  return count >= 64 ? value : value & ((uint64_t{1} << count) - 1);
}

// The dropped part as a fraction of the quantum, cut to 32 bits.
uint32_t dropped_fraction(uint64_t dropped, int shift) {
  constexpr int kRandomBits = 32;
  if (shift <= kRandomBits) return static_cast<uint32_t>(dropped << (kRandomBits - shift));
  return static_cast<uint32_t>(shift_right(dropped, shift - kRandomBits));
}

// Requires: dropped != 0.
bool rounds_up(uint64_t kept, uint64_t dropped, int shift, bool negative, Rounding rounding,
               uint32_t random) {
  const bool half = (shift_right(dropped, shift - 1) & 1) != 0;  // R
  const bool rest = low_part(dropped, shift - 1) != 0;           // any T
  switch (rounding) {
    case Rounding::kNearestEven:
      return half && (rest || (kept & 1) != 0);
    case Rounding::kNearestAway:
      return half;
    case Rounding::kTowardZero:
      return false;
    case Rounding::kUp:
      return !negative;
    case Rounding::kDown:
      return negative;
    case Rounding::kOdd:
      return (kept & 1) == 0;
    case Rounding::kStochastic:
      return random < dropped_fraction(dropped, shift);
  }
  return false;
}

}  // namespace

std::span<const RoundingInfo> roundings() {
  return kRoundings;
}

Rounding find_rounding(std::string_view name) {
  return find_row("rounding", name, kRoundings).rounding;
}

std::string_view to_string(Rounding rounding) {
  for (const RoundingInfo& row : kRoundings) {
    if (row.rounding == rounding) return row.name;
  }
  return "?";
}

double round_to_format(double x, const Format& format, Rounding rounding, uint32_t random) {
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  const bool negative = (bits >> 63) != 0;
  if (std::isnan(x)) return kQuietNan;
  if (std::isinf(x)) return from_infinity(x, format);
  const bool flushed =
      format.subnormals == SubnormalRule::kFlushIn && std::abs(x) < format.min_normal();
  if (x == 0 || flushed) return signed_zero(negative, format);

  uint64_t significand = bits & kFractionMask;
  int e = static_cast<int>(bits >> kFractionBits & 0x7ff) - kBias;
  if (e == -kBias) {  // a subnormal double: bring its leading bit to the place of the implicit one
    const int up = std::countl_zero(significand) - (63 - kFractionBits);
    significand <<= up;
    e = 1 - kBias - up;
  } else {
    significand |= kImplicitBit;
  }

  const int q = std::max(e, format.emin) - (format.precision - 1);
  const int shift = q - (e - kFractionBits);
  if (shift < 0) {  // more precision than a double: only the range needs a check
    return std::abs(x) > format.max_finite ? overflow(negative, format, rounding) : x;
  }
  uint64_t kept = shift_right(significand, shift);
  const uint64_t dropped = low_part(significand, shift);
  if (dropped != 0 && rounds_up(kept, dropped, shift, negative, rounding, random)) ++kept;

  const double magnitude = static_cast<double>(kept) * power_of_two(q);  // exact: kept <= 2^53
  if (magnitude > format.max_finite) return overflow(negative, format, rounding);
  const bool subnormal = magnitude < format.min_normal();
  if (magnitude == 0 || (subnormal && !format.has_subnormals())) {
    return signed_zero(negative, format);
  }
  return negative ? -magnitude : magnitude;
}

}  // namespace lockstep
