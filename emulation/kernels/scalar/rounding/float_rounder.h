// Rounds one float to a format that FP32 contains. The results are those of round_to_format
// (emulation/format/rounding.h), computed on the float's own bits with 32-bit integers.
// emulation/format/float_format.h says where the magnitude is cut; a carry runs into the exponent,
// as it should.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "emulation/format/float_format.h"
#include "emulation/format/rounding.h"
#include "src/core/host_device.h"

namespace lockstep {

class FloatRounder {
 public:
  // Requires: FP32 contains the format.
  FloatRounder(const Format& format, Rounding rounding) : format_(format, rounding) {}

  // `random` is used by kStochastic only. Requires: kMode is the mode of the constructor.
  template <Rounding kMode>
  LOCKSTEP_HOST_DEVICE float round(float x, uint32_t random) const {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    uint32_t sign = bits & kFloatSignBit, magnitude = bits ^ sign;
    if (magnitude < format_.flush_in_below) magnitude = 0;
    uint32_t result = magnitude < format_.least ? round_tiny<kMode>(magnitude, sign, random)
                                                : round_others<kMode>(magnitude, sign, random);
    if (result > format_.max_finite) return beyond(magnitude, sign);
    if (result < format_.flush_out_below) result = 0;
    if (result == 0 && format_.unsigned_zero) sign = 0;
    return std::bit_cast<float>(result | sign);
  }

 private:
  // |x| >= least: step 4 of emulation/format/rounding.cc.
  template <Rounding kMode>
  LOCKSTEP_HOST_DEVICE uint32_t round_others(uint32_t magnitude, uint32_t sign,
                                             uint32_t random) const {
    const uint32_t field = magnitude >> kFloatFractionBits;
    const uint32_t shift = format_.drop + std::max(field, format_.emin_field) - field;
    const uint32_t ulp = 1u << shift, dropped = magnitude & (ulp - 1);
    const uint32_t odd = (magnitude ^ format_.lowest_binade) >> shift & 1;
    // Where no bit is dropped, ulp is 1, and half of it counts as 1, which no remainder reaches.
    const uint32_t half = ulp >> 1 | (ulp & 1);
    bool up = false;
    if constexpr (kMode == Rounding::kNearestEven) up = dropped + odd > half;
    if constexpr (kMode == Rounding::kNearestAway) up = dropped >= half;
    if constexpr (kMode == Rounding::kUp) up = (dropped != 0) & (sign == 0);
    if constexpr (kMode == Rounding::kDown) up = (dropped != 0) & (sign != 0);
    if constexpr (kMode == Rounding::kOdd) up = (dropped != 0) & (odd == 0);
    if constexpr (kMode == Rounding::kStochastic) up = random < fraction(dropped, shift);
    return magnitude - dropped + (up ? ulp : 0);
  }

  // |x| < least: zero or least.
  template <Rounding kMode>
  LOCKSTEP_HOST_DEVICE uint32_t round_tiny(uint32_t magnitude, uint32_t sign,
                                           uint32_t random) const {
    bool up = magnitude > (sign == 0 ? format_.to_zero_positive : format_.to_zero_negative);
    if constexpr (kMode == Rounding::kStochastic) {
      const uint32_t field = magnitude >> kFloatFractionBits;
      const uint32_t implicit = field == 0 ? 0 : 1u << kFloatFractionBits;
      const uint32_t significand = (magnitude & ((1u << kFloatFractionBits) - 1)) | implicit;
      up = random < fraction(significand, format_.drop + format_.emin_field - std::max(field, 1u));
    }
    return up ? format_.least : 0;
  }

  // value / 2^shift, which is below 1, in units of 2^-32.
  LOCKSTEP_HOST_DEVICE static uint32_t fraction(uint64_t value, uint32_t shift) {
    constexpr uint32_t kUnits = 32, kLongestShift = 63;  // beyond it nothing is left of a float
    return static_cast<uint32_t>(value << kUnits >> std::min(shift, kLongestShift));
  }

  // Overflow, infinity and NaN.
  LOCKSTEP_HOST_DEVICE float beyond(uint32_t magnitude, uint32_t sign) const {
    uint32_t result = sign == 0 ? format_.overflow_positive : format_.overflow_negative;
    if (magnitude == kFloatInfinity) result = format_.from_infinity;
    if (magnitude > kFloatInfinity) result = kFloatNan;
    return std::bit_cast<float>(result > kFloatInfinity ? kFloatNan : result | sign);
  }

  FloatFormat format_;
};

// Calls f.operator()<kMode>() with the mode as a constant.
template <typename F>
LOCKSTEP_HOST_DEVICE decltype(auto) with_rounding(Rounding rounding, const F& f) {
  switch (rounding) {
    case Rounding::kNearestAway:
      return f.template operator()<Rounding::kNearestAway>();
    case Rounding::kTowardZero:
      return f.template operator()<Rounding::kTowardZero>();
    case Rounding::kUp:
      return f.template operator()<Rounding::kUp>();
    case Rounding::kDown:
      return f.template operator()<Rounding::kDown>();
    case Rounding::kOdd:
      return f.template operator()<Rounding::kOdd>();
    case Rounding::kStochastic:
      return f.template operator()<Rounding::kStochastic>();
    case Rounding::kNearestEven:
      break;
  }
  return f.template operator()<Rounding::kNearestEven>();
}

}  // namespace lockstep
