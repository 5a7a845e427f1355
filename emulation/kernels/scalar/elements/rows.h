// Reductions of rows of (rows, cols) to one number each, and their gradients. Sums use the
// accumulator; rows are spread over the threads.
#pragma once

#include "emulation/kernels/kernel_set.h"

namespace lockstep {

// y[r] = sum of row r.
template <typename T>
void row_sums(const RowFunctions<T>& row, const T* x, T* y, int64_t rows, int64_t cols,
              const Accumulator& accumulator);
// x[r, :] = y[r] / divisor, the transpose of a sum or mean.
template <typename T>
void repeat_rows(const T* y, T divisor, T* x, int64_t rows, int64_t cols);

// y[r] = the largest element, or the first NaN if there is one; index[r]: its first position.
// `index` may be null.
template <typename T>
void row_maxima(const T* x, T* y, int32_t* index, int64_t rows, int64_t cols);
// dx = dy / (how many elements equal y) at those elements, else 0. NaN where y is NaN.
template <typename T>
void row_maxima_backward(const T* x, const T* y, const T* dy, T* dx, int64_t rows, int64_t cols);
// dx = dy at the index, else 0.
template <typename T>
void row_index_backward(const int32_t* index, const T* dy, T* dx, int64_t rows, int64_t cols);

// mean[r] = sum / cols;  var[r] = sum (x - mean)^2 / max(0, cols - correction), in two passes.
template <typename T>
void row_variances(const RowFunctions<T>& row, const T* x, double correction, T* var, T* mean,
                   int64_t rows, int64_t cols, const Accumulator& accumulator);
// dx = dvar 2 / (cols - correction) (x - mean) + dmean / cols; dvar or dmean may be null.
template <typename T>
void row_variances_backward(const T* x, const T* mean, const T* dvar, const T* dmean,
                            double correction, T* dx, int64_t rows, int64_t cols);

// y[r, c] = sum of x[r, 0..c], in order, every partial sum a value of the accumulator's format;
// reversed: of x[r, c..], from the end.
template <typename T>
void running_sums(const T* x, bool reversed, T* y, int64_t rows, int64_t cols,
                  const Accumulator& accumulator);

}  // namespace lockstep
