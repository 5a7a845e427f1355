// Softmax over the last axis, over any block sum. A row with NaN, with +inf, or of -inf alone is
// NaN.
#pragma once

#include "emulation/scalar/reduce.h"

namespace lockstep {

// Shapes: x, y (rows, cols). y = exp(x - max) / sum exp(x - max).
template <typename T>
void softmax_with(BlockSum<T> block_sum, const T* x, T* y, int64_t rows, int64_t cols,
                  const Accumulator& accumulator);
// dx = y * (dy - sum(dy * y)).
template <typename T>
void softmax_backward_with(BlockSum<T> block_sum, const T* y, const T* dy, T* dx, int64_t rows,
                           int64_t cols, const Accumulator& accumulator);

template <typename T>
void scalar_softmax(const T* x, T* y, int64_t rows, int64_t cols, const Accumulator& accumulator);
template <typename T>
void scalar_softmax_backward(const T* y, const T* dy, T* dx, int64_t rows, int64_t cols,
                             const Accumulator& accumulator);

// The largest element; NaN if there is one. Requires: count >= 1.
template <typename T>
T row_max(const T* x, int64_t count) {
  T best = x[0];
  for (int64_t i = 1; i < count; ++i) {
    if (x[i] > best || x[i] != x[i]) best = x[i];
    if (best != best) return best;
  }
  return best;
}

}  // namespace lockstep
