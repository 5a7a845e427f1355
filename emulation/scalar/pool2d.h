// Max pooling over (N,C,H,W) images: plain loops.
#pragma once

#include <cstdint>

#include "emulation/kernel_set.h"

namespace lockstep {

// y (N,C,P,Q), argmax (N,C,P,Q): h * W + w of the element taken. Requires: every window holds at
// least one element that is not padding.
template <typename T>
void scalar_max_pool2d(const PoolShape& shape, const T* x, T* y, int32_t* argmax);
// dx (N,C,H,W): sums of dy in the order of the windows, in T.
template <typename T>
void scalar_max_pool2d_backward(const PoolShape& shape, const T* dy, const int32_t* argmax, T* dx);

}  // namespace lockstep
