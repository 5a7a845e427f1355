// Softmax and its logarithm over the last axis, over any row functions. A row with NaN, with +inf,
// or of only -inf gives NaN.
#pragma once

#include <limits>
#include "emulation/kernels/kernel_set.h"

#include "emulation/kernels/scalar/elements/reduce.h"

namespace lockstep {

template <typename T>
void scalar_row_exp(const T* x, T* y, int64_t count);
template <typename T>
void scalar_row_log(const T* x, T* y, int64_t count);
template <typename T>
inline constexpr RowFunctions<T> kScalarRow = {scalar_block_sum<T>, scalar_row_exp<T>,
                                               scalar_row_log<T>};

// Shapes: x, y (rows, cols). y = exp(x - max) / sum exp(x - max).
template <typename T>
void softmax_with(const RowFunctions<T>& row, const T* x, T* y, int64_t rows, int64_t cols,
                  const Accumulator& accumulator);
// dx = y * (dy - sum(dy * y)).
template <typename T>
void softmax_backward_with(const RowFunctions<T>& row, const T* y, const T* dy, T* dx, int64_t rows,
                           int64_t cols, const Accumulator& accumulator);
// y = (x - max) - log(sum exp(x - max)); the sum and its logarithm rounded to `parts` if given.
template <typename T>
void log_softmax_with(const RowFunctions<T>& row, const T* x, T* y, int64_t rows, int64_t cols,
                      const Accumulator& accumulator, const Format* parts);
// dx = dy - exp(y) * sum(dy).
template <typename T>
void log_softmax_backward_with(const RowFunctions<T>& row, const T* y, const T* dy, T* dx,
                               int64_t rows, int64_t cols, const Accumulator& accumulator);
// y (rows) = max + log(sum exp(x - max)), with 0 for an infinite maximum. Every operation except
// the last is rounded to `parts` if given.
template <typename T>
void logsumexp_with(const RowFunctions<T>& row, const T* x, T* y, int64_t rows, int64_t cols,
                    const Accumulator& accumulator, const Format* parts);

// dx = dy exp(x - y), y and dy (rows). `parts` as above.
template <typename T>
void logsumexp_backward_with(const RowFunctions<T>& row, const T* x, const T* y, const T* dy, T* dx,
                             int64_t rows, int64_t cols, const Format* parts);

// The largest element; NaN if there is one. Requires: count >= 1. Works in lanes, which the
// compiler turns into vectors: a maximum does not depend on the order.
template <typename T>
T row_max(const T* x, int64_t count) {
  constexpr int64_t kLanes = 16;
  if (count < kLanes) {
    T largest = x[0];
    bool any_nan = false;
    for (int64_t i = 0; i < count; ++i) {
      largest = x[i] > largest ? x[i] : largest;
      any_nan |= x[i] != x[i];
    }
    return any_nan ? std::numeric_limits<T>::quiet_NaN() : largest;
  }
  T best[kLanes];
  bool is_nan[kLanes] = {};
  for (int64_t l = 0; l < kLanes; ++l) best[l] = x[0];
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) {
      best[l] = x[i + l] > best[l] ? x[i + l] : best[l];
      is_nan[l] |= x[i + l] != x[i + l];
    }
  }
  for (; i < count; ++i) {
    best[0] = x[i] > best[0] ? x[i] : best[0];
    is_nan[0] |= x[i] != x[i];
  }
  for (int64_t l = 0; l < kLanes; ++l) {
    if (is_nan[l]) return std::numeric_limits<T>::quiet_NaN();
    best[0] = best[l] > best[0] ? best[l] : best[0];
  }
  return best[0];
}

}  // namespace lockstep
