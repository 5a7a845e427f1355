// The functions of emulation/math/elementwise_functions.h, element by element; ranges are spread
// over the threads. NaN results are the canonical NaN. An output may be one of the inputs.
#pragma once

#include "emulation/math/elementwise_functions.h"

namespace lockstep {

template <typename T>
void scalar_unary(Unary function, const FunctionParameters& parameters, const T* x, T* y,
                  int64_t count);
template <typename T>
void scalar_unary_backward(Unary function, const FunctionParameters& parameters, const T* saved,
                           const T* dy, T* dx, int64_t count);
template <typename T>
void scalar_binary(Binary function, const FunctionParameters& parameters, const T* a, const T* b,
                   T* y, int64_t count);

// Gradients of the smaller (or larger) of two numbers: all of dy to the chosen one, half to each if
// they are equal, all to both if one is NaN. `sign` is +1 for minimum, -1 for maximum.
template <typename T>
void scalar_choice_backward(T sign, const T* own, const T* other, const T* dy, T* dx,
                            int64_t count);
// y[i] = x[i] ^ e[i], and its gradients: dx = dy e x^(e-1), 0 where e = 0; de = dy y log x, 0 where
// x = 0 and e >= 0.
template <typename T>
void scalar_power(const T* x, const T* e, T* y, int64_t count);
template <typename T>
void scalar_power_backward_base(const T* x, const T* e, const T* dy, T* dx, int64_t count);
template <typename T>
void scalar_power_backward_exponent(const T* x, const T* e, const T* y, const T* dy, T* de,
                                    int64_t count);
// db = -dy (a / b) / b, the gradient of a / b.
template <typename T>
void scalar_div_backward(const T* a, const T* b, const T* dy, T* db, int64_t count);

}  // namespace lockstep
