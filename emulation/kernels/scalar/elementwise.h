// One output per element, no sums. NaN results are the canonical NaN.
#pragma once

#include <cstdint>

namespace lockstep {

// Shapes: all arrays (count). An output may be one of the inputs.
template <typename T>
void scalar_add(const T* a, const T* b, T* y, int64_t count);
template <typename T>
void scalar_mul(const T* a, const T* b, T* y, int64_t count);
template <typename T>
void scalar_scale(const T* x, T factor, T* y, int64_t count);
// y (N,C,plane) += b (C).
template <typename T>
void scalar_add_channels(T* y, const T* b, int64_t batch, int64_t channels, int64_t plane);
// max(x, +0); NaN is kept, -0 becomes +0.
template <typename T>
void scalar_relu(const T* x, T* y, int64_t count);
// dy where x > 0 or x is NaN, else +0.
template <typename T>
void scalar_relu_backward(const T* x, const T* dy, T* dx, int64_t count);

}  // namespace lockstep
