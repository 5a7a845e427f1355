// Finds the scale of a block and the factor it multiplies by.
// The arithmetic of emulation/format/block_format.h on bits and through tables, for the vector
// kernels: one plan per call. Equal to scale_code and block_scale for every float (tests).
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "emulation/kernels/args/block_spec.h"
#include "emulation/kernels/simd/rounding/quantize_plan.h"
#include "emulation/stats/tensor_stats.h"

namespace lockstep {

// The code of a block's scale, from the bits of its largest magnitude (above infinity's for NaN).
struct ScaleCoder {
  bool is_e4m3;
  uint32_t addend;  // e8m0: brings the rule's exponent into the field of amax
  int emax;
  float element_max, tensor_scale;  // e4m3

  uint8_t operator()(uint32_t amax_bits) const {
    if (is_e4m3) return e4m3_code(amax_bits);
    if (amax_bits >= kInfinity) return kE8m0Nan;
    constexpr int kFloatFraction = 23;
    const int code = static_cast<int>((amax_bits + addend) >> kFloatFraction) - emax;
    return static_cast<uint8_t>(code < 0 ? 0 : code);
  }
  uint8_t nan_code() const { return is_e4m3 ? kE4m3Nan : kE8m0Nan; }

 private:
  static constexpr uint32_t kInfinity = 0x7f800000;
  static constexpr uint8_t kE8m0Nan = 0xff, kE4m3Nan = 0x7f, kE4m3Largest = 0x7e;

  uint8_t e4m3_code(uint32_t amax_bits) const {
    if (amax_bits >= kInfinity) return kE4m3Nan;
    if (amax_bits == 0 || tensor_scale == 0) return 0;
    const float x = std::bit_cast<float>(amax_bits) / element_max / tensor_scale;
    if (x < 0x1p-6f) {  // subnormals: multiples of 2^-9, rounded where float's last place is 1
      constexpr float kLastPlaceOne = 0x1p23f;
      return static_cast<uint8_t>(std::bit_cast<uint32_t>(x * 0x1p9f + kLastPlaceOne));
    }
    constexpr int kDropped = 20, kFieldShift = (127 - 7) << 3;
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    const uint32_t almost_half = (1u << (kDropped - 1)) - 1 + (bits >> kDropped & 1);
    const uint32_t code = ((bits + almost_half) >> kDropped) - kFieldShift;
    return static_cast<uint8_t>(code < kE4m3Largest ? code : kE4m3Largest);
  }
};

struct BlockPlan {
  QuantizePlan element;
  // Nearest even to a saturating element by one floating-point addition, for finite blocks.
  bool plain;
  ScaleCoder code_of;
  // By code: the scale, and for e8m0, whose elements are multiplied by it, its exact inverse.
  std::array<float, 256> scale, inverse;

  BlockPlan(const BlockQuantizeSpec& spec, float tensor_scale);
};

}  // namespace lockstep
