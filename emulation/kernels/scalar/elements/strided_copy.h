// Copies an array from one memory layout to another.
// One kernel for every op that only moves elements: permute, slice, cat, pad, expand. Element (i0,
// i1, ...) goes from x[sum i_d x_stride_d] to y[sum i_d y_stride_d]. No rounding, any element type.
#pragma once

#include <vector>

#include "emulation/kernels/args/movement_args.h"

namespace lockstep {

// Requires: no two elements have the same place in y. Large copies are spread over the threads.
template <typename T>
void strided_copy(const std::vector<StridedDim>& dims, const T* x, T* y);

// y[i] = value
template <typename T>
void fill(T value, T* y, int64_t count);

}  // namespace lockstep
