// One output per element, no sums. NaN results are the canonical NaN.
#pragma once

#include <cstdint>

#include "src/core/random.h"

namespace lockstep {

// Shapes: all arrays (count). An output may be one of the inputs.
template <typename T>
void scalar_add(const T* a, const T* b, T* y, int64_t count);
template <typename T>
void scalar_mul(const T* a, const T* b, T* y, int64_t count);
template <typename T>
void scalar_scale(const T* x, T factor, T* y, int64_t count);
// y = round(x factor), the product in double.
template <typename T>
void scale_in_double(const T* x, double factor, T* y, int64_t count);
template <typename T>
void scalar_divide(const T* x, T divisor, T* y, int64_t count);
// Element i gets its sign from draw `first` + i. Zeros and non-finite values are unchanged.
template <typename T>
void move_by_one_ulp(T* x, const RandomStream& signs, uint64_t first, int64_t count);
// y (N,C,plane) += b (C).
template <typename T>
void scalar_add_channels(T* y, const T* b, int64_t batch, int64_t channels, int64_t plane);
// max(x, +0); NaN is kept, -0 becomes +0.
template <typename T>
void scalar_relu(const T* x, T* y, int64_t count);
// dy where y > 0 or y is NaN, else +0.
template <typename T>
void scalar_relu_backward(const T* y, const T* dy, T* dx, int64_t count);

}  // namespace lockstep
