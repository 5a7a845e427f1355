// Rounding a matrix to a block format, and measuring what that did.
// Blocks run along one axis of a row-major matrix; the last one of a row or column may be shorter.
// The functions here choose nothing: they run the kernel of the active instruction set, all of
// which give equal bits, statistics and scale codes included.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "emulation/format/block_format.h"
#include "emulation/stats/tensor_stats.h"

namespace lockstep {

// A row-major matrix and the way its blocks run: along a row (axis 1, neighbours in memory) or down
// a column (axis 0). Scale codes are a row-major matrix too, (rows, blocks) or (blocks, cols).
struct BlockShape {
  int64_t rows = 1, cols = 0;
  int axis = 1;

  int64_t count() const { return rows * cols; }
  int64_t along() const { return axis == 1 ? cols : rows; }
  int64_t blocks_along(int block_size) const { return (along() + block_size - 1) / block_size; }
  int64_t scale_count(int block_size) const {
    return blocks_along(block_size) * (axis == 1 ? rows : cols);
  }
};

struct BlockQuantizeSpec {
  const BlockFormat* format = nullptr;
  Rounding rounding = Rounding::kNearestEven;  // of the elements; scales have their own rule
  StochasticKey key = {};                      // used by Rounding::kStochastic
  // The scale of the tensor (nvfp4), where it is known beforehand; 0: from the largest finite
  // element. Requires: >= 0, 0 unless the format has e4m3 scales.
  double tensor_scale = 0;
};

struct BlockScales {
  std::vector<uint8_t> codes;
  double tensor_scale = 1;
};

// after[i] = the value of element i in the block format. `after` may be `before`. `stats` and
// `scales` may be null; they are overwritten. In `stats`, max_finite and min_normal are those of
// each element's own block; an element that its block's NaN scale made NaN counts as to_infinity.
// Shapes: before and after hold shape.count() elements.
template <typename T>
void quantize_blocks(std::span<const T> before, std::span<T> after, const BlockShape& shape,
                     const BlockQuantizeSpec& spec, TensorStats* stats, BlockScales* scales);

}  // namespace lockstep
