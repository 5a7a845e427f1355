// How does an array get from one memory layout to another?
// One kernel for every op that only moves elements: permute, slice, cat, pad, expand. Element (i0,
// i1, ...) goes from x[sum i_d x_stride_d] to y[sum i_d y_stride_d]. No rounding, any element type.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep {

struct StridedDim {
  int64_t extent, x_stride, y_stride;  // a stride of 0 repeats an element of x
};

// Strides of a dense row-major array.
std::vector<int64_t> dense_strides(const std::vector<int64_t>& shape);

// The copy that repeats a dense x of shape `from` to a dense y of shape `to`: shapes are aligned at
// their last dimension, and extents of 1 are repeated. Requires: `from` broadcasts to `to`.
std::vector<StridedDim> repeating_dims(const std::vector<int64_t>& from,
                                       const std::vector<int64_t>& to);

// Requires: no two elements meet in y. Spread over the threads where it is large.
template <typename T>
void strided_copy(std::vector<StridedDim> dims, const T* x, T* y);

}  // namespace lockstep
