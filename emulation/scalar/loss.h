// Scalar losses and their gradients, over any block sum. Formulas: emulation/kernel_set.h.
#pragma once

#include "emulation/scalar/reduce.h"

namespace lockstep {

// Mean over rows of log(sum exp(x - max)) + (max - x[target]).
template <typename T>
void cross_entropy_with(BlockSum<T> block_sum, const T* x, const int32_t* target, T* loss,
                        int64_t rows, int64_t cols, const Accumulator& accumulator);
// dx = (softmax(x) - onehot(target)) * (dloss / rows).
template <typename T>
void cross_entropy_backward_with(BlockSum<T> block_sum, const T* x, const int32_t* target, T dloss,
                                 T* dx, int64_t rows, int64_t cols, const Accumulator& accumulator);
// Mean of (x - target)^2.
template <typename T>
void mse_loss_with(BlockSum<T> block_sum, const T* x, const T* target, T* loss, int64_t count,
                   const Accumulator& accumulator);

template <typename T>
void scalar_cross_entropy(const T* x, const int32_t* target, T* loss, int64_t rows, int64_t cols,
                          const Accumulator& accumulator);
template <typename T>
void scalar_cross_entropy_backward(const T* x, const int32_t* target, T dloss, T* dx, int64_t rows,
                                   int64_t cols, const Accumulator& accumulator);
template <typename T>
void scalar_mse_loss(const T* x, const T* target, T* loss, int64_t count,
                     const Accumulator& accumulator);
// dx = (x - target) * (2 dloss / count).
template <typename T>
void scalar_mse_loss_backward(const T* x, const T* target, T dloss, T* dx, int64_t count);

}  // namespace lockstep
