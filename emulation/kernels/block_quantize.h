// Rounds a matrix to a block format and measures the effect.
// Blocks run along one axis of a row-major matrix; the last block of a row or column may be
// shorter. The function runs the kernels of the given set. All sets give equal bits, statistics and
// scale codes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "emulation/kernels/args/block_spec.h"
#include "emulation/kernels/kernel_set.h"
#include "emulation/stats/tensor_stats.h"

namespace lockstep {

struct BlockScales {
  std::vector<uint8_t> codes;
  double tensor_scale = 1;
};

// after[i] = the value of element i in the block format. `after` may be `before`. `stats` and
// `scales` may be null; they are overwritten. In `stats`, max_finite and min_normal are those of
// each element's own block; an element that is NaN because its block's scale is NaN counts as
// to_infinity.
// Shapes: before and after hold shape.count() elements.
template <typename T>
void quantize_blocks(const KernelSet& set, std::span<const T> before, std::span<T> after,
                     const BlockShape& shape, const BlockQuantizeSpec& spec, TensorStats* stats,
                     BlockScales* scales);

}  // namespace lockstep
