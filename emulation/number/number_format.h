// Number formats at compile time.
// A format as a template argument, and the constants of the named formats up to 19 bits. Limits and
// codes are derived. Knows nothing of names, help texts or the run-time table (format.h). Tests
// compare its rows with these constants field by field.
#pragma once

#include <bit>
#include <cstdint>

#include "emulation/format/rounding_rules.h"

namespace lockstep {

// The codes that are not finite numbers.
enum class SpecialCodes : uint8_t {
  kIeee,             // the top exponent field: infinity with fraction 0, else NaN
  kNanAllOnes,       // S.1..1.1..1 is NaN, no infinity (OCP E4M3)
  kNanNegativeZero,  // 1.0..0.0..0 is NaN, no infinity, no negative zero ("fnuz")
  kNone,             // every code is a finite number (OCP MX FP6 and FP4)
};

struct NumberFormat {
  int precision;      // p: significand bits, implicit bit included
  int emin;           // exponent of the smallest normal number
  int exponent_bits;  // field width
  SpecialCodes special_codes = SpecialCodes::kIeee;
  OverflowRule overflow = OverflowRule::kInfinity;
  SubnormalRule subnormals = SubnormalRule::kKept;

  constexpr int fraction_bits() const { return precision - 1; }
  constexpr int storage_bits() const { return exponent_bits + precision; }
  constexpr bool has_infinity() const { return special_codes == SpecialCodes::kIeee; }
  constexpr bool has_nan() const { return special_codes != SpecialCodes::kNone; }
  constexpr bool has_negative_zero() const {
    return special_codes != SpecialCodes::kNanNegativeZero;
  }

  // Codes: [sign | exponent field | fraction], right-aligned.
  constexpr uint32_t sign_code() const { return uint32_t{1} << (storage_bits() - 1); }
  constexpr uint32_t magnitude_mask() const { return sign_code() - 1; }
  constexpr uint32_t fraction_mask() const { return (uint32_t{1} << fraction_bits()) - 1; }
  constexpr uint32_t infinity_code() const { return magnitude_mask() & ~fraction_mask(); }
  constexpr uint32_t min_normal_code() const { return uint32_t{1} << fraction_bits(); }
  constexpr uint32_t max_finite_code() const {
    if (special_codes == SpecialCodes::kIeee) return infinity_code() - 1;
    return special_codes == SpecialCodes::kNanAllOnes ? magnitude_mask() - 1 : magnitude_mask();
  }
  // The quiet NaN. Without one: max_finite, as in NVIDIA's conversions to FP6 and FP4 (PTX ISA,
  // cvt: a NaN becomes the positive largest number).
  constexpr uint32_t nan_code() const {
    switch (special_codes) {
      case SpecialCodes::kIeee:
        return infinity_code() | uint32_t{1} << (fraction_bits() - 1);
      case SpecialCodes::kNanAllOnes:
        return magnitude_mask();
      case SpecialCodes::kNanNegativeZero:
        return sign_code();
      case SpecialCodes::kNone:
        break;
    }
    return max_finite_code();
  }
  // The exponent of max_finite. A field f > 0 means the exponent f + emin - 1.
  constexpr int emax() const {
    return static_cast<int>(max_finite_code() >> fraction_bits()) + emin - 1;
  }

  constexpr NumberFormat with(OverflowRule rule) const {
    NumberFormat format = *this;
    format.overflow = rule;
    return format;
  }
  constexpr NumberFormat with(SubnormalRule rule) const {
    NumberFormat format = *this;
    format.subnormals = rule;
    return format;
  }
  constexpr bool operator==(const NumberFormat&) const = default;
};

// IEEE 754-2019 §3.3 with these field widths: emax = 2^(E-1) - 1, emin = 1 - emax.
constexpr NumberFormat ieee_format(int exponent_bits, int fraction_bits) {
  return {.precision = fraction_bits + 1,
          .emin = 2 - (1 << (exponent_bits - 1)),
          .exponent_bits = exponent_bits};
}

inline constexpr NumberFormat kTf32 = ieee_format(8, 10);
inline constexpr NumberFormat kFp16 = ieee_format(5, 10);
inline constexpr NumberFormat kBf16 = ieee_format(8, 7);
inline constexpr NumberFormat kFp8E5m2 = ieee_format(5, 2);
inline constexpr NumberFormat kFp8E4m3 = {.precision = 4,
                                          .emin = -6,
                                          .exponent_bits = 4,
                                          .special_codes = SpecialCodes::kNanAllOnes,
                                          .overflow = OverflowRule::kNan};
inline constexpr NumberFormat kFp8E4m3Fnuz = {.precision = 4,
                                              .emin = -7,
                                              .exponent_bits = 4,
                                              .special_codes = SpecialCodes::kNanNegativeZero,
                                              .overflow = OverflowRule::kNan};
inline constexpr NumberFormat kFp8E5m2Fnuz = {.precision = 3,
                                              .emin = -15,
                                              .exponent_bits = 5,
                                              .special_codes = SpecialCodes::kNanNegativeZero,
                                              .overflow = OverflowRule::kNan};
inline constexpr NumberFormat kFp6E3m2 = {.precision = 3,
                                          .emin = -2,
                                          .exponent_bits = 3,
                                          .special_codes = SpecialCodes::kNone,
                                          .overflow = OverflowRule::kSaturate};
inline constexpr NumberFormat kFp6E2m3 = {.precision = 4,
                                          .emin = 0,
                                          .exponent_bits = 2,
                                          .special_codes = SpecialCodes::kNone,
                                          .overflow = OverflowRule::kSaturate};
inline constexpr NumberFormat kFp4E2m1 = {.precision = 2,
                                          .emin = 0,
                                          .exponent_bits = 2,
                                          .special_codes = SpecialCodes::kNone,
                                          .overflow = OverflowRule::kSaturate};

}  // namespace lockstep
