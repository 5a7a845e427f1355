// Means of the windows of images, and their gradients. A window is an interval of rows times an
// interval of columns, so that one kernel does fixed and adaptive pooling.
//   y  = sum / divisor, the sum a chain from +0 in scan order
//   dx = a chain from +0 of dy / divisor over the windows that hold the pixel, in scan order
// Chains: emulation/kernels/scalar/products/chain_add.h. Plain loops; planes are spread over the
// threads.
#pragma once

#include "emulation/accumulator/accumulator.h"
#include "emulation/kernels/args/pool_args.h"

namespace lockstep {

// x (planes, height, width), y (planes, rows, columns).
template <typename T>
void avg_pool2d(const AvgPool& pool, const T* x, T* y, const Accumulator& accumulator);
template <typename T>
void avg_pool2d_backward(const AvgPool& pool, const T* dy, T* dx, const Accumulator& accumulator);

}  // namespace lockstep
