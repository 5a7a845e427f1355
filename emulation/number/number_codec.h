// Conversions between numbers and their codes.
// The rounding of emulation/format/rounding.h as constant-expression integer arithmetic on codes,
// for a format known at compile time. Knows nothing of arithmetic.
//
//   1. x = significand * 2^exponent, an integer of at most 64 bits; binade = floor(log2 |x|).
//   2. quantum 2^q of the format around x: q = max(binade, emin) - (p-1).
//   3. kept = floor(significand / 2^(q-exponent)); the rest and the mode decide if 1 is added.
//   4. code = (max(binade, emin) - emin) * 2^(p-1) + kept. The implicit bit of kept makes the
//      exponent field start at 1, a carry out of kept goes to the next binade, and subnormals have
//      no implicit bit: one formula for all cases.
//   5. a code above that of max_finite overflows.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "emulation/number/number_format.h"

namespace lockstep {

template <NumberFormat F>
struct NumberCodec {
  static_assert(F.exponent_bits >= 2 && F.exponent_bits <= 8, "exponent fields of 2 to 8 bits");
  static_assert(F.precision >= 2 && F.precision <= 24, "1 to 23 fraction bits");
  static_assert(F.overflow != OverflowRule::kInfinity || F.has_infinity(),
                "overflow to infinity needs a format that has infinity");
  static_assert(F.overflow != OverflowRule::kNan || (F.has_nan() && !F.has_infinity()),
                "overflow to NaN needs a format that has NaN, and no infinity");

  static constexpr bool is_nan(uint32_t code) {
    const uint32_t magnitude = code & F.magnitude_mask();
    switch (F.special_codes) {
      case SpecialCodes::kIeee:
        return magnitude > F.infinity_code();
      case SpecialCodes::kNanAllOnes:
        return magnitude == F.magnitude_mask();
      case SpecialCodes::kNanNegativeZero:
        return code == F.sign_code();
      case SpecialCodes::kNone:
        break;
    }
    return false;
  }
  static constexpr bool is_infinity(uint32_t code) {
    return F.has_infinity() && (code & F.magnitude_mask()) == F.infinity_code();
  }

  static constexpr uint32_t with_sign(uint32_t magnitude, bool negative) {
    const uint32_t sign = static_cast<uint32_t>(negative) << (F.storage_bits() - 1);
    return magnitude == 0 && !F.has_negative_zero() ? 0 : magnitude | sign;
  }

  // The value of a code. Codes of flushed subnormals are zeros with their sign.
  static constexpr double decode(uint32_t code) {
    const uint32_t magnitude = code & F.magnitude_mask();
    const bool negative = (code & F.sign_code()) != 0;
    if (magnitude > F.max_finite_code() || is_nan(code)) [[unlikely]] {
      if (is_nan(code)) return std::numeric_limits<double>::quiet_NaN();
      return negative ? -kInfinity : kInfinity;
    }
    uint64_t bits = (uint64_t{magnitude} << kDropped) + kRebias;
    if (magnitude < F.min_normal_code()) {
      constexpr double kFlush = F.subnormals == SubnormalRule::kKept ? 1 : 0;
      const double multiple = static_cast<double>(static_cast<int32_t>(magnitude));
      bits = std::bit_cast<uint64_t>(multiple * (kFlush * kSpacing));
    }
    return std::bit_cast<double>(bits | uint64_t{negative} << 63);
  }

  // The same as round(x, Rounding::kNearestEven): the same steps with shifts that the compiler
  // knows.
  static constexpr uint32_t round_to_nearest_even(double x) {
    const uint64_t bits = std::bit_cast<uint64_t>(x);
    const bool negative = bits >> 63 != 0;
    const uint64_t magnitude = bits & ~(uint64_t{1} << 63);
    uint64_t code;
    if (magnitude >= std::bit_cast<uint64_t>(kMinNormal)) [[likely]] {
      constexpr uint64_t kBelowHalf = (uint64_t{1} << (kDropped - 1)) - 1;
      const uint64_t last_bit = magnitude >> kDropped & 1;
      code = (magnitude - kRebias + kBelowHalf + last_bit) >> kDropped;
      if (code > F.max_finite_code()) [[unlikely]] {
        return magnitude > kDoubleInfinity ? F.nan_code() : from_infinity(negative);
      }
    } else if (F.subnormals == SubnormalRule::kFlushIn) {
      code = 0;
    } else {
      // The sum's last place is the spacing of the subnormals: adding rounds to a multiple of it.
      constexpr uint64_t kAligner =
          static_cast<uint64_t>(kDoubleBias + F.emin - F.fraction_bits() + kDoubleFractionBits)
          << kDoubleFractionBits;
      const double sum = std::bit_cast<double>(magnitude) + std::bit_cast<double>(kAligner);
      code = std::bit_cast<uint64_t>(sum) - kAligner;
      if (F.subnormals == SubnormalRule::kFlushOut && code < F.min_normal_code()) code = 0;
    }
    return with_sign(static_cast<uint32_t>(code), negative);
  }

  // x rounded once. Only kStochastic uses `random` (rounding.h).
  static constexpr uint32_t round(double x, Rounding rounding, uint32_t random = 0) {
    const uint64_t bits = std::bit_cast<uint64_t>(x);
    const bool negative = bits >> 63 != 0;
    const uint64_t magnitude = bits & ~(uint64_t{1} << 63);
    if (magnitude >= kDoubleInfinity) {
      return magnitude > kDoubleInfinity ? F.nan_code() : from_infinity(negative);
    }
    const int field = static_cast<int>(magnitude >> kDoubleFractionBits);
    uint64_t significand = magnitude & (kDoubleImplicitBit - 1);
    if (field != 0) significand |= kDoubleImplicitBit;
    // The binade of subnormal doubles is smaller, but so far below 2^emin that it is not used.
    const int binade = std::max(field, 1) - kDoubleBias;
    return round_scaled(negative, significand, binade - kDoubleFractionBits, binade, rounding,
                        random);
  }

  // (-1)^negative * significand * 2^exponent rounded once.
  // Requires: 2^52 <= significand, or a number below 2^emin; binade is the number's floor(log2), or
  // any value below emin if that is below emin.
  static constexpr uint32_t round_scaled(bool negative, uint64_t significand, int exponent,
                                         int binade, Rounding rounding, uint32_t random) {
    if (F.subnormals == SubnormalRule::kFlushIn && binade < F.emin) return with_sign(0, negative);
    const int top = std::max(binade, F.emin);
    const int shift = top - F.fraction_bits() - exponent;  // 52 - 23 at least
    // If more than 63 bits are dropped, significand < 2^53 is below a quarter of the quantum. A
    // shift of 63 gives the same result.
    constexpr int kMaxShift = 63;
    const int cut = std::min(shift, kMaxShift);
    const uint64_t kept = significand >> cut;
    const uint64_t dropped = significand & ((uint64_t{1} << cut) - 1);
    uint64_t code = (static_cast<uint64_t>(top - F.emin) << F.fraction_bits()) + kept;
    if (rounds_up(kept & 1, dropped, cut, shift, negative, rounding, random)) ++code;
    if (code > F.max_finite_code()) return overflow(negative, rounding);
    if (F.subnormals == SubnormalRule::kFlushOut && code < F.min_normal_code()) code = 0;
    return with_sign(static_cast<uint32_t>(code), negative);
  }

 private:
  static constexpr int kDoubleFractionBits = 52, kDoubleBias = 1023;
  static constexpr uint64_t kDoubleImplicitBit = uint64_t{1} << kDoubleFractionBits;
  static constexpr uint64_t kDoubleInfinity = uint64_t{0x7ff} << kDoubleFractionBits;
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();
  // kDropped: the fraction bits that a double has in addition to the format's. kRebias: a normal
  // number's bits as a double minus its code shifted above those bits; the biases' difference.
  static constexpr int kDropped = kDoubleFractionBits - F.fraction_bits();
  static constexpr uint64_t kRebias = static_cast<uint64_t>(kDoubleBias + F.emin - 1)
                                      << kDoubleFractionBits;
  // The spacing of the subnormals.
  static constexpr double kSpacing = std::bit_cast<double>(
      static_cast<uint64_t>(kDoubleBias + F.emin - F.fraction_bits()) << kDoubleFractionBits);
  static constexpr double kMinNormal = std::bit_cast<double>(kRebias + kDoubleImplicitBit);

  static constexpr bool rounds_up(uint64_t last_bit, uint64_t dropped, int cut, int shift,
                                  bool negative, Rounding rounding, uint32_t random) {
    const uint64_t half = uint64_t{1} << (cut - 1);
    switch (rounding) {
      case Rounding::kNearestEven:
        return dropped + last_bit > half;
      case Rounding::kNearestAway:
        return dropped >= half;
      case Rounding::kTowardZero:
        return false;
      case Rounding::kUp:
        return dropped != 0 && !negative;
      case Rounding::kDown:
        return dropped != 0 && negative;
      case Rounding::kOdd:
        return dropped != 0 && last_bit == 0;
      case Rounding::kStochastic:
        break;
    }
    // The dropped part as a fraction of the quantum, cut to the 32 bits of `random`.
    constexpr int kRandomBits = 32;
    if (shift <= kRandomBits) return random < dropped << (kRandomBits - shift);
    return shift - kRandomBits < 64 && random < dropped >> (shift - kRandomBits);
  }

  static constexpr uint32_t overflow(bool negative, Rounding rounding) {
    const bool stays_finite = rounding == Rounding::kTowardZero || rounding == Rounding::kOdd ||
                              (rounding == Rounding::kUp && negative) ||
                              (rounding == Rounding::kDown && !negative);
    return stays_finite ? with_sign(F.max_finite_code(), negative) : from_infinity(negative);
  }
  static constexpr uint32_t from_infinity(bool negative) {
    if (F.overflow == OverflowRule::kNan) return F.nan_code();
    return with_sign(
        F.overflow == OverflowRule::kSaturate ? F.max_finite_code() : F.infinity_code(), negative);
  }
};

}  // namespace lockstep
