// A format in terms of the bits of floats.
// Holds the constants for rounding an array of floats to one format in one mode. They are chosen
// once per call, so neither the scalar nor the vector kernels decide anything about formats. For
// floats without their sign, the order of the bits is the order of the values, infinity and NaN
// last. A value of the format is a float whose last bits are zero. The number of these bits:
//
//   |x| >= 2^emin            drop = 24 - p
//   least <= |x| < 2^emin    one more per binade: drop + emin - e, at most 23
//   |x| < least              no value but zero; least = 2^(emin-p+1)
//
// Formats with FP32's exponent field have FP32's subnormals, cut like normal numbers: the first
// line applies to every x.
#pragma once

#include <cstdint>

#include "emulation/format/format.h"
#include "emulation/format/rounding.h"

namespace lockstep {

inline constexpr uint32_t kFloatSignBit = 0x80000000;
inline constexpr uint32_t kFloatInfinity = 0x7f800000;
inline constexpr uint32_t kFloatNan = 0x7fc00000;  // the one NaN that kernels return
inline constexpr int kFloatFractionBits = 23, kFloatExponentBits = 8, kFloatBias = 127;
inline constexpr int kFloatPrecision = kFloatFractionBits + 1;

// "bits" means the bits of a float's magnitude.
struct FloatFormat {
  // If FP32 does not contain the format, only max_finite and min_normal are set.
  FloatFormat(const Format& format, Rounding rounding);

  uint32_t max_finite, min_normal;  // bits; limits beyond FP32's own have no effect
  uint32_t drop = 0;                // 24 - p
  uint32_t emin_field = 0;          // FP32 exponent field of 2^emin; 0 with FP32's exponent field
  uint32_t least = 0;               // bits; 0 with FP32's exponent field
  // In [least, 2 least) the one kept bit is the implicit one, and the last bit of the exponent is
  // in its place: magnitude ^ lowest_binade has a 1 there, and is the same below it.
  uint32_t lowest_binade = 0;
  // Below least: bits above these become least, all others zero (deterministic modes).
  uint32_t to_zero_positive = 0, to_zero_negative = 0;
  // Bits below which an input or a result is flushed.
  uint32_t flush_in_below = 0, flush_out_below = 0;
  bool unsigned_zero = false;                             // -0 becomes +0
  uint32_t from_infinity = 0;                             // bits of a rounded infinity
  uint32_t overflow_positive = 0, overflow_negative = 0;  // ... of a value beyond max_finite
};

}  // namespace lockstep
