// What is the scale of this block, and what does it multiply by?
// The arithmetic of emulation/block_format.h on bits and through tables, for the vector kernels:
// one plan per call. Equal to scale_code and block_scale for every float (tests).
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "emulation/block_quantize.h"
#include "emulation/simd/quantize_plan.h"

namespace lockstep {

struct BlockPlan {
  QuantizePlan element;
  bool divides;  // by the scale; otherwise multiplies by its inverse, exactly
  // Nearest even to a saturating element by one floating-point addition, for finite blocks.
  bool plain;
  float tensor_scale, element_max;
  uint32_t addend;  // brings the rule's exponent into the field of amax
  int emax;
  std::array<float, 256> scale, inverse;  // by code

  BlockPlan(const BlockQuantizeSpec& spec, float tensor_scale);

  // amax_bits: the largest magnitude bits of the block, beyond infinity's for a NaN.
  uint8_t code_of(uint32_t amax_bits) const {
    constexpr uint32_t kInfinity = 0x7f800000;
    constexpr int kFloatFraction = 23;
    if (divides) return e4m3_code(amax_bits);
    if (amax_bits >= kInfinity) return kE8m0Nan;
    const int code = static_cast<int>((amax_bits + addend) >> kFloatFraction) - emax;
    return static_cast<uint8_t>(code < 0 ? 0 : code);
  }
  uint8_t nan_code() const { return divides ? kE4m3Nan : kE8m0Nan; }

 private:
  static constexpr uint8_t kE8m0Nan = 0xff, kE4m3Nan = 0x7f, kE4m3Largest = 0x7e;

  uint8_t e4m3_code(uint32_t amax_bits) const {
    if (amax_bits >= 0x7f800000) return kE4m3Nan;
    if (amax_bits == 0 || tensor_scale == 0) return 0;
    const float x = std::bit_cast<float>(amax_bits) / element_max / tensor_scale;
    if (x < 0x1p-6f) {  // subnormals: multiples of 2^-9, rounded where float's last place is 1
      constexpr float kLastPlaceOne = 0x1p23f;
      return static_cast<uint8_t>(std::bit_cast<uint32_t>(x * 0x1p9f + kLastPlaceOne));
    }
    constexpr int kDropped = 20, kFieldShift = (127 - 7) << 3;
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    const uint32_t half = (1u << (kDropped - 1)) - 1 + (bits >> kDropped & 1);
    const uint32_t code = ((bits + half) >> kDropped) - kFieldShift;
    return static_cast<uint8_t>(code < kE4m3Largest ? code : kE4m3Largest);
  }
};

}  // namespace lockstep
