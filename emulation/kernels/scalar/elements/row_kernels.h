// The kernels that are made of row functions.
// An instruction set with its own block sum, and exp and log over arrays, gets its versions of all
// these kernels here.
#pragma once

#include "emulation/kernels/kernel_set.h"
#include "emulation/kernels/scalar/elements/loss.h"
#include "emulation/kernels/scalar/elements/rows.h"
#include "emulation/kernels/scalar/elements/softmax.h"

namespace lockstep {

template <typename T, const RowFunctions<T>& kRow>
void use_row_functions(Kernels<T>& kernels) {
  using Sums = const Accumulator&;
  kernels.row = kRow;
  kernels.row_sums = [](const T* x, T* y, int64_t rows, int64_t cols, Sums sums) {
    row_sums<T>(kRow, x, y, rows, cols, sums);
  };
  kernels.row_variances = [](const T* x, double correction, T* var, T* mean, int64_t rows,
                             int64_t cols, Sums sums) {
    row_variances<T>(kRow, x, correction, var, mean, rows, cols, sums);
  };
  kernels.softmax = [](const T* x, T* y, int64_t rows, int64_t cols, Sums sums) {
    softmax_with<T>(kRow, x, y, rows, cols, sums);
  };
  kernels.softmax_backward = [](const T* y, const T* dy, T* dx, int64_t rows, int64_t cols,
                                Sums sums) {
    softmax_backward_with<T>(kRow, y, dy, dx, rows, cols, sums);
  };
  kernels.log_softmax = [](const T* x, T* y, int64_t rows, int64_t cols, Sums sums,
                           const Format* parts) {
    log_softmax_with<T>(kRow, x, y, rows, cols, sums, parts);
  };
  kernels.log_softmax_backward = [](const T* y, const T* dy, T* dx, int64_t rows, int64_t cols,
                                    Sums sums) {
    log_softmax_backward_with<T>(kRow, y, dy, dx, rows, cols, sums);
  };
  kernels.logsumexp = [](const T* x, T* y, int64_t rows, int64_t cols, Sums sums,
                         const Format* parts) {
    logsumexp_with<T>(kRow, x, y, rows, cols, sums, parts);
  };
  kernels.logsumexp_backward = [](const T* x, const T* y, const T* dy, T* dx, int64_t rows,
                                  int64_t cols, const Format* parts) {
    logsumexp_backward_with<T>(kRow, x, y, dy, dx, rows, cols, parts);
  };
  kernels.cross_entropy = [](const CrossEntropyArgs<T>& a) { cross_entropy_with<T>(kRow, a); };
  kernels.cross_entropy_backward = [](const CrossEntropyArgs<T>& a) {
    cross_entropy_backward_with<T>(kRow, a);
  };
}

}  // namespace lockstep
