// The scale of every block of a factor, as numbers.
// Block kernels (emulation/kernels/block_quantize.h) keep scales to themselves. They are needed
// where sums are formed block by block (block_products.h), and where a policy states scales other
// than the block format's own:
//
//   s = fp32(max_finite / max(amax, epsilon)), the quotient in FP64    q = round(fp32(x s))
//   value = fp32(q r)    r = fp32(1 / s)    without block_scale = "fp32": s cut to a power of two
//
// A block that holds a NaN or an infinity is all NaN. Source: torchao 0.18,
// prototype/blockwise_fp8_training/kernels.py, float8/float8_utils.py: amax_to_scale.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "emulation/kernels/kernel_set.h"
#include "emulation/stats/tensor_stats.h"
#include "src/lower/scaled_cast.h"

namespace lockstep {

struct FactorScales {
  int64_t rows = 0, cols = 0;              // of the factor as a matrix
  int64_t block_rows = 1, block_cols = 1;  // of a block; those at the edge may be smaller
  std::vector<float> multiply;             // s: brings an element into the narrow format
  std::vector<float> divide;               // r: a rounded element times r is its value

  int64_t blocks_across() const { return (cols + block_cols - 1) / block_cols; }
  int64_t block_at(int64_t row, int64_t col) const {
    return row / block_rows * blocks_across() + col / block_cols;
  }
};

// The scales that `cast` gives x. Requires: cast.to.block.
FactorScales find_scales(const ScaledCast& cast, std::span<const float> x);

// y = x s, block by block. y may be x.
void multiply_blocks(const FactorScales& scales, std::span<const float> factors,
                     std::span<const float> x, std::span<float> y);

// y = the values of x under its scales, where the policy states them (has_own_scales). `stats` may
// be null. Its counts compare with each element's own block, as those of block kernels do.
// Requires: y is not x.
void quantize_with_scales(const KernelSet& set, const ScaledCast& cast, const FactorScales& scales,
                          std::span<const float> x, std::span<float> y, const QuantizeSpec& spec,
                          TensorStats* stats);

}  // namespace lockstep
