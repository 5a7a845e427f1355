// Softmax row by row; rows are spread over the threads.
#include "emulation/kernels/scalar/elements/softmax.h"

#include <cmath>
#include <vector>

#include "emulation/accumulator/fast_round.h"
#include "emulation/kernels/scalar/rounding/nearest_round.h"
#include "emulation/math/exp_log.h"
#include "src/core/chunks.h"

namespace lockstep {

template <typename T>
void scalar_row_exp(const T* x, T* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = lockstep_exp<T>(x[i]);
}
template <typename T>
void scalar_row_log(const T* x, T* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = lockstep_log<T>(x[i]);
}

template <typename T>
void softmax_with(const RowFunctions<T>& row, const T* x, T* y, int64_t rows, int64_t cols,
                  const Accumulator& accumulator) {
  parallel_chunks(rows, row_grain(cols), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* in = x + r * cols;
      T* out = y + r * cols;
      const T max = row_max(in, cols);
      for (int64_t i = 0; i < cols; ++i) out[i] = in[i] - max;
      row.exp(out, out, cols);
      const T sum = static_cast<T>(sum_array<T>(out, cols, accumulator, row.block_sum));
      for (int64_t i = 0; i < cols; ++i) out[i] = canonical_nan(out[i] / sum);
    }
  });
}

template <typename T>
void softmax_backward_with(const RowFunctions<T>& row, const T* y, const T* dy, T* dx, int64_t rows,
                           int64_t cols, const Accumulator& accumulator) {
  parallel_chunks(rows, row_grain(cols), [&](int64_t begin, int64_t end) {
    std::vector<T> product(static_cast<size_t>(cols));
    for (int64_t r = begin; r < end; ++r) {
      const int64_t base = r * cols;
      for (int64_t i = 0; i < cols; ++i) {
        product[static_cast<size_t>(i)] = dy[base + i] * y[base + i];
      }
      const T sum = static_cast<T>(sum_array<T>(product.data(), cols, accumulator, row.block_sum));
      for (int64_t i = base; i < base + cols; ++i) dx[i] = canonical_nan(y[i] * (dy[i] - sum));
    }
  });
}

template <typename T>
void log_softmax_with(const RowFunctions<T>& row, const T* x, T* y, int64_t rows, int64_t cols,
                      const Accumulator& accumulator, const Format* parts) {
  const PartRound<T> round(parts);
  parallel_chunks(rows, row_grain(cols), [&](int64_t begin, int64_t end) {
    std::vector<T> exponentials(static_cast<size_t>(cols));
    for (int64_t r = begin; r < end; ++r) {
      const T* in = x + r * cols;
      T* out = y + r * cols;
      const T max = row_max(in, cols);
      for (int64_t i = 0; i < cols; ++i) out[i] = in[i] - max;
      row.exp(out, exponentials.data(), cols);
      const T sum =
          static_cast<T>(sum_array<T>(exponentials.data(), cols, accumulator, row.block_sum));
      const T log_sum = round(lockstep_log<T>(round(sum)));
      for (int64_t i = 0; i < cols; ++i) out[i] = canonical_nan(out[i] - log_sum);
    }
  });
}

template <typename T>
void log_softmax_backward_with(const RowFunctions<T>& row, const T* y, const T* dy, T* dx,
                               int64_t rows, int64_t cols, const Accumulator& accumulator) {
  parallel_chunks(rows, row_grain(cols), [&](int64_t begin, int64_t end) {
    std::vector<T> softmax(static_cast<size_t>(cols));
    for (int64_t r = begin; r < end; ++r) {
      const int64_t base = r * cols;
      const T sum = static_cast<T>(sum_array<T>(dy + base, cols, accumulator, row.block_sum));
      row.exp(y + base, softmax.data(), cols);
      for (int64_t i = 0; i < cols; ++i) {
        dx[base + i] = canonical_nan(dy[base + i] - softmax[static_cast<size_t>(i)] * sum);
      }
    }
  });
}

template <typename T>
void logsumexp_with(const RowFunctions<T>& row, const T* x, T* y, int64_t rows, int64_t cols,
                    const Accumulator& accumulator, const Format* parts) {
  const PartRound<T> round(parts);
  parallel_chunks(rows, row_grain(cols), [&](int64_t begin, int64_t end) {
    std::vector<T> exponentials(static_cast<size_t>(cols));
    for (int64_t r = begin; r < end; ++r) {
      const T* in = x + r * cols;
      T max = row_max(in, cols);
      if (std::isinf(max)) max = T(0);
      for (int64_t i = 0; i < cols; ++i) exponentials[static_cast<size_t>(i)] = in[i] - max;
      round(exponentials.data(), cols);
      row.exp(exponentials.data(), exponentials.data(), cols);
      round(exponentials.data(), cols);
      const T sum =
          static_cast<T>(sum_array<T>(exponentials.data(), cols, accumulator, row.block_sum));
      y[r] = canonical_nan(max + round(lockstep_log<T>(round(sum))));
    }
  });
}

template <typename T>
void logsumexp_backward_with(const RowFunctions<T>& row, const T* x, const T* y, const T* dy, T* dx,
                             int64_t rows, int64_t cols, const Format* parts) {
  const PartRound<T> round(parts);
  parallel_chunks(rows, row_grain(cols), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      T* out = dx + r * cols;
      for (int64_t i = 0; i < cols; ++i) out[i] = x[r * cols + i] - y[r];
      round(out, cols);
      row.exp(out, out, cols);
      round(out, cols);
      for (int64_t i = 0; i < cols; ++i) out[i] = canonical_nan(dy[r] * out[i]);
    }
  });
}

#define LOCKSTEP_BACKWARD(NAME, T)                                                            \
  template void NAME##_backward_with(const RowFunctions<T>&, const T*, const T*, T*, int64_t, \
                                     int64_t, const Accumulator&);
#define LOCKSTEP_INSTANTIATE(T)                                                                   \
  template void scalar_row_exp(const T*, T*, int64_t);                                            \
  template void scalar_row_log(const T*, T*, int64_t);                                            \
  template void softmax_with(const RowFunctions<T>&, const T*, T*, int64_t, int64_t,              \
                             const Accumulator&);                                                 \
  template void log_softmax_with(const RowFunctions<T>&, const T*, T*, int64_t, int64_t,          \
                                 const Accumulator&, const Format*);                              \
  LOCKSTEP_BACKWARD(softmax, T)                                                                   \
  LOCKSTEP_BACKWARD(log_softmax, T)                                                               \
  template void logsumexp_backward_with(const RowFunctions<T>&, const T*, const T*, const T*, T*, \
                                        int64_t, int64_t, const Format*);                         \
  template void logsumexp_with(const RowFunctions<T>&, const T*, T*, int64_t, int64_t,            \
                               const Accumulator&, const Format*);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE
#undef LOCKSTEP_BACKWARD

}  // namespace lockstep
