// Batch normalisation, forward and backward: the order of the work and its sums. Formulas:
// emulation/kernels/args/norm_args.h. The loops over elements are in a table; an instruction set
// supplies only those.
#pragma once

#include "emulation/kernels/args/norm_args.h"
#include "emulation/kernels/scalar/elements/reduce.h"

namespace lockstep {

// Operations on some elements of one channel. An output may be an input.
template <typename T>
struct BatchNormLoops {
  BlockSum<T> block_sum;
  // out = (x - centre)^2
  void (*squares)(const T* x, T centre, T* out, int64_t count);
  // y = ((x - mean) inv_std) w + b
  void (*normalise)(const T* x, T mean, T inv_std, T w, T b, T* y, int64_t count);
  // y = x factor + rest, fused
  void (*scale_and_add)(const T* x, T factor, T rest, T* y, int64_t count);
  // out = dy ((x - mean) inv_std)
  void (*weight_terms)(const T* x, const T* dy, T mean, T inv_std, T* out, int64_t count);
  // dx = factor ((n dy - sum_dy) - ((x - mean) inv_std) sum_dy_x_hat)
  void (*input_gradient)(const T* x, const T* dy, T mean, T inv_std, T factor, T n, T sum_dy,
                         T sum_dy_x_hat, T* dx, int64_t count);
};

// y = ((x - mean) * inv_std) * w + b, every operation in T; a null weight is 1, a null bias 0.
// Outputs other than y (dx) may be null.
template <typename T>
void batch_norm_with(const BatchNormLoops<T>& loops, const BatchNormArgs<T>& args);
template <typename T>
void batch_norm_backward_with(const BatchNormLoops<T>& loops, const BatchNormBackwardArgs<T>& args);

template <typename T>
void scalar_batch_norm(const BatchNormArgs<T>& args);
template <typename T>
void scalar_batch_norm_backward(const BatchNormBackwardArgs<T>& args);

}  // namespace lockstep
