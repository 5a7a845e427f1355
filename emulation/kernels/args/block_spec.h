// Describes how a matrix is rounded to a block format.
#pragma once

#include <cstdint>

#include "emulation/format/block_format.h"

namespace lockstep {

// A row-major matrix and the direction of its blocks: along a row (axis 1, neighbours in memory) or
// down a column (axis 0). The scale codes form a row-major matrix too, (rows, blocks) or (blocks,
// cols).
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
  // The scale of the tensor (nvfp4) if it is known beforehand; 0: computed from the largest finite
  // element. Requires: >= 0; 0 unless the format has e4m3 scales.
  double tensor_scale = 0;
};

}  // namespace lockstep
