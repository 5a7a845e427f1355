// Decides which sums of blocks may run in 32-bit lanes.
// A tensor core's block (emulation/accumulator/aligned_block.h) as numbers for vector code, and the
// bounds within which float products and 32-bit integer sums are exact. Shared by all instruction
// sets.
#pragma once

#include <cmath>
#include <cstdint>

#include "emulation/accumulator/accumulator.h"
#include "emulation/kernels/kernel_set.h"

namespace lockstep {

inline constexpr int kLongestBlock = 32;
inline constexpr int kFewestLines = 16, kMostLines = 32;  // of k that are processed together
inline constexpr int64_t kLongestInterval = 128;
inline constexpr int kMostFractionBits = 25;
inline constexpr int kUnroll = 4;  // products that vector code takes at once

struct BlockRules {
  // Requires: takes(g).
  explicit BlockRules(const GemmArgs<float>& g)
      : spec(g.accumulator->block),
        a_format(factor_format(spec, *operand(*g.accumulator, g.a_format))),
        b_format(factor_format(spec, *operand(*g.accumulator, g.b_format))) {
    splits_sum = !fits_int32(spec.length);
  }

  // False: the scalar kernel computes it, and has the message for formats that do not fit.
  static bool takes(const GemmArgs<float>& g) {
    const Accumulator& accumulator = *g.accumulator;
    if (accumulator.kind != AccumulatorKind::kAlignedBlocks) return false;
    const Format *a = operand(accumulator, g.a_format), *b = operand(accumulator, g.b_format);
    if (a == nullptr || b == nullptr || !accumulator.takes(*a) || !accumulator.takes(*b)) {
      return false;
    }
    // Vector code cuts FP32 registers to TF32, as is documented for the hardware.
    if (accumulator.block.tf32_input != Tf32Input::kTruncate) return false;
    // Products are exact in float; two halves of a block fit 32-bit integers.
    constexpr int kFloatPrecision = 24;
    const BlockSpec& spec = accumulator.block;
    const int interval = spec.promotion_interval != 0 ? spec.promotion_interval : spec.length;
    const BlockRules rules(g);
    return rules.a_format.precision + rules.b_format.precision <= kFloatPrecision &&
           spec.fraction_bits <= kMostFractionBits && spec.length <= kLongestBlock &&
           spec.length % kUnroll == 0 && kMostLines % spec.length == 0 &&
           kLongestInterval % interval == 0 && interval % spec.length == 0 &&
           rules.fits_int32((spec.length + 1) / 2);
  }

  // Is the sum of `count` terms and an addend below 2^31 in units of 2^(E - F)? A factor's
  // significand is 2 - 2^(1 - p) at most, an addend's less than 2.
  bool fits_int32(int count) const {
    const double unit = std::ldexp(1.0, spec.fraction_bits);
    const double product = (2 - a_format.machine_epsilon()) * (2 - b_format.machine_epsilon());
    return (count * product + 2) * unit < 0x1p31;
  }

  const BlockSpec& spec;
  const Format &a_format, &b_format;
  bool splits_sum;  // the two halves of a block are summed separately

 private:
  static const Format* operand(const Accumulator& accumulator, const Format* given) {
    if (given != nullptr) return given;
    return accumulator.operands.size() == 1 ? accumulator.operands[0] : nullptr;
  }
};

// A block is calm when the exponents of its nonzero factors are in [kLowestFactor, kHighestFactor],
// those of its products in [kLowestProduct, kHighestProduct], and its addends are calm: 0, of a
// magnitude in [kSmallestAddend, kLargestAddend), or results of a calm block before.
//   Then kLowestCommon may be the lower bound of the common exponent. With a product, the exponent
//   is at least that. Without one, the addend passes unchanged: it is a multiple of
//   2^(kLowestCommon - F), as all results of calm blocks are and all addends of magnitude
//   kSmallestAddend, or, for F < 22, its own exponent is above kLowestCommon. 2^(F - E), 2^(E - F)
//   and all scaled terms are floats, and results are normal or zero. One k block adds less than
//   2^kHighestProduct * 4 * kBlockK < 2^60 to an addend.
struct CalmBlock {
  static constexpr int kLowestFactor = -63, kHighestFactor = 63;
  static constexpr int kLowestProduct = -50, kHighestProduct = 40;
  static constexpr int kLowestCommon = -51;
  static constexpr float kSmallestAddend = 0x1p-50f, kLargestAddend = 0x1p100f;
};

}  // namespace lockstep
