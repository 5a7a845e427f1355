// The leaky relu whose slope is an operand, and its gradients, element by element. Scalar only.
#pragma once

#include "emulation/kernels/args/elementwise_args.h"

namespace lockstep {

// y = x where x > 0, else w x.
template <typename T>
void scalar_prelu(const PreluShape& shape, const T* x, const T* w, T* y);
// dx = dy where x > 0, else w dy;  dw_terms = 0 where x > 0, else x dy; their sum is dw.
template <typename T>
void scalar_prelu_backward(const PreluShape& shape, const T* x, const T* w, const T* dy, T* dx,
                           T* dw_terms);

}  // namespace lockstep
