// See rows.h.
#include "emulation/kernels/scalar/elements/rows.h"

#include <algorithm>
#include <vector>

#include "emulation/accumulator/fast_round.h"
#include "emulation/kernels/scalar/elements/reduce.h"
#include "src/core/chunks.h"

namespace lockstep {
namespace {

template <typename Body>
void for_each_row(int64_t rows, int64_t cols, Body body) {
  parallel_chunks(rows, row_grain(cols), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) body(r);
  });
}

}  // namespace

template <typename T>
void row_sums(const RowFunctions<T>& row, const T* x, T* y, int64_t rows, int64_t cols,
              const Accumulator& accumulator) {
  for_each_row(rows, cols, [&](int64_t r) {
    y[r] = static_cast<T>(sum_array<T>(x + r * cols, cols, accumulator, row.block_sum));
  });
}

template <typename T>
void repeat_rows(const T* y, T divisor, T* x, int64_t rows, int64_t cols) {
  for_each_row(rows, cols,
               [&](int64_t r) { std::fill_n(x + r * cols, cols, canonical_nan(y[r] / divisor)); });
}

template <typename T>
void row_maxima(const T* x, T* y, int32_t* index, int64_t rows, int64_t cols) {
  for_each_row(rows, cols, [&](int64_t r) {
    const T* in = x + r * cols;
    int64_t best = 0;
    for (int64_t i = 1; i < cols && in[best] == in[best]; ++i) {
      if (in[i] > in[best] || in[i] != in[i]) best = i;
    }
    y[r] = canonical_nan(in[best]);
    if (index != nullptr) index[r] = static_cast<int32_t>(best);
  });
}

template <typename T>
void row_maxima_backward(const T* x, const T* y, const T* dy, T* dx, int64_t rows, int64_t cols) {
  for_each_row(rows, cols, [&](int64_t r) {
    const T* in = x + r * cols;
    const T ties = static_cast<T>(std::count(in, in + cols, y[r]));
    for (int64_t i = 0; i < cols; ++i) {
      dx[r * cols + i] = canonical_nan((in[i] == y[r] ? dy[r] : T(0)) / ties);
    }
  });
}

template <typename T>
void row_index_backward(const int32_t* index, const T* dy, T* dx, int64_t rows, int64_t cols) {
  for_each_row(rows, cols, [&](int64_t r) {
    std::fill_n(dx + r * cols, cols, T(0));
    dx[r * cols + index[r]] = canonical_nan(dy[r]);
  });
}

template <typename T>
void row_variances(const RowFunctions<T>& row, const T* x, double correction, T* var, T* mean,
                   int64_t rows, int64_t cols, const Accumulator& accumulator) {
  const T divisor = static_cast<T>(std::max(0.0, static_cast<double>(cols) - correction));
  for_each_row(rows, cols, [&](int64_t r) {
    const T* in = x + r * cols;
    const T sum = static_cast<T>(sum_array<T>(in, cols, accumulator, row.block_sum));
    const T m = canonical_nan(sum / static_cast<T>(cols));
    const double squares =
        sum_terms<T>(cols, accumulator, row.block_sum, [&](int64_t begin, int64_t n, T* buffer) {
          for (int64_t i = 0; i < n; ++i) {
            const T deviation = in[begin + i] - m;
            buffer[i] = deviation * deviation;
          }
        });
    mean[r] = m;
    var[r] = canonical_nan(static_cast<T>(squares) / divisor);
  });
}

template <typename T>
void row_variances_backward(const T* x, const T* mean, const T* dvar, const T* dmean,
                            double correction, T* dx, int64_t rows, int64_t cols) {
  const T factor = static_cast<T>(2 / (static_cast<double>(cols) - correction));
  for_each_row(rows, cols, [&](int64_t r) {
    const T slope = dvar != nullptr ? factor * dvar[r] : T(0);
    const T shift = dmean != nullptr ? dmean[r] / static_cast<T>(cols) : T(0);
    for (int64_t i = r * cols; i < (r + 1) * cols; ++i) {
      const T from_var = dvar != nullptr ? slope * (x[i] - mean[r]) : T(0);
      dx[i] = canonical_nan(from_var + shift);
    }
  });
}

template <typename T>
void running_sums(const T* x, bool reversed, T* y, int64_t rows, int64_t cols,
                  const Accumulator& accumulator) {
  const bool is_own =
      sizeof(T) == 4 ? accumulator.format->is_fp32() : accumulator.format->is_fp64();
  for_each_row(rows, cols, [&](int64_t r) {
    T sum = T(0);
    for (int64_t i = 0; i < cols; ++i) {
      const int64_t at = r * cols + (reversed ? cols - 1 - i : i);
      sum = is_own ? sum + x[at] : static_cast<T>(accumulate_add(accumulator, sum, x[at]));
      y[at] = canonical_nan(sum);
    }
  });
}

#define LOCKSTEP_INSTANTIATE(T)                                                                   \
  template void row_sums(const RowFunctions<T>&, const T*, T*, int64_t, int64_t,                  \
                         const Accumulator&);                                                     \
  template void repeat_rows(const T*, T, T*, int64_t, int64_t);                                   \
  template void row_maxima(const T*, T*, int32_t*, int64_t, int64_t);                             \
  template void row_maxima_backward(const T*, const T*, const T*, T*, int64_t, int64_t);          \
  template void row_index_backward(const int32_t*, const T*, T*, int64_t, int64_t);               \
  template void row_variances(const RowFunctions<T>&, const T*, double, T*, T*, int64_t, int64_t, \
                              const Accumulator&);                                                \
  template void row_variances_backward(const T*, const T*, const T*, const T*, double, T*,        \
                                       int64_t, int64_t);                                         \
  template void running_sums(const T*, bool, T*, int64_t, int64_t, const Accumulator&);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep
