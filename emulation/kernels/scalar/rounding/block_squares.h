// Block formats whose blocks are squares.
// block_size x block_size neighbours of a matrix share one scale, so that the matrix and its
// transpose are rounded equally. Plain loops; scales and elements follow
// emulation/format/block_format.h. Source: NVIDIA, arXiv 2509.25149, section on
// two-dimensional scaling of weights.
#pragma once

#include <algorithm>
#include <cstdint>

#include "emulation/kernels/args/block_spec.h"
#include "emulation/stats/tensor_stats.h"
#include "src/core/chunks.h"

namespace lockstep {

// Squares per task: about kElementGrain elements.
inline int64_t square_grain(int64_t size, int64_t rows, int64_t cols) {
  const int64_t elements = std::min(size, rows) * std::min(size, cols);
  return std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, elements));
}

// after[i] = the value of element i of the row-major matrix (rows, cols); `after` may be `before`.
// Squares at the right and lower edge are cut. `stats` may be null; its meaning is that of
// quantize_blocks. The tensor's scale is 1.
template <typename T>
void scalar_quantize_block_squares(const T* before, T* after, int64_t rows, int64_t cols,
                                   const BlockQuantizeSpec& spec, TensorStats* stats);

}  // namespace lockstep
