// The leaky relu whose slope is an operand, and its gradients, element by element. Scalar alone.
#pragma once

#include <cstdint>

namespace lockstep {

// x of `count` elements; element i has slope w[i / inner % channels], channels 1: one for all.
struct PreluShape {
  int64_t count, channels, inner;
};

// y = x where x > 0, else w x.
template <typename T>
void scalar_prelu(const PreluShape& shape, const T* x, const T* w, T* y);
// dx = dy where x > 0, else w dy;  dw_terms = 0 where x > 0, else x dy: summed up, dw.
template <typename T>
void scalar_prelu_backward(const PreluShape& shape, const T* x, const T* w, const T* dy, T* dx,
                           T* dw_terms);

}  // namespace lockstep
