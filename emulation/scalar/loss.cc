// Cross entropy by log-sum-exp, and the mean squared error.
#include "emulation/scalar/loss.h"

#include <vector>

#include "emulation/fast_round.h"
#include "emulation/math.h"
#include "emulation/scalar/chunks.h"
#include "emulation/scalar/softmax.h"

namespace lockstep {

template <typename T>
void cross_entropy_with(BlockSum<T> block_sum, const T* x, const int32_t* target, T* loss,
                        int64_t rows, int64_t cols, const Accumulator& accumulator) {
  std::vector<T> row_loss(static_cast<size_t>(rows));
  parallel_chunks(rows, row_grain(cols), [&](int64_t begin, int64_t end) {
    std::vector<T> exponentials(static_cast<size_t>(cols));
    for (int64_t row = begin; row < end; ++row) {
      const T* in = x + row * cols;
      const T max = row_max(in, cols);
      for (int64_t i = 0; i < cols; ++i) {
        exponentials[static_cast<size_t>(i)] = lockstep_exp<T>(in[i] - max);
      }
      const T sum = static_cast<T>(sum_array<T>(exponentials.data(), cols, accumulator, block_sum));
      row_loss[static_cast<size_t>(row)] = lockstep_log<T>(sum) + (max - in[target[row]]);
    }
  });
  const T sum = static_cast<T>(sum_array<T>(row_loss.data(), rows, accumulator, block_sum));
  *loss = canonical_nan(sum / static_cast<T>(rows));
}

template <typename T>
void cross_entropy_backward_with(BlockSum<T> block_sum, const T* x, const int32_t* target, T dloss,
                                 T* dx, int64_t rows, int64_t cols,
                                 const Accumulator& accumulator) {
  softmax_with<T>({block_sum, scalar_row_exp<T>}, x, dx, rows, cols, accumulator);
  const T factor = dloss / static_cast<T>(rows);
  parallel_chunks(rows, row_grain(cols), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      T* out = dx + row * cols;
      out[target[row]] -= T(1);
      for (int64_t i = 0; i < cols; ++i) out[i] = canonical_nan(out[i] * factor);
    }
  });
}

template <typename T>
void mse_loss_with(BlockSum<T> block_sum, const T* x, const T* target, T* loss, int64_t count,
                   const Accumulator& accumulator) {
  const double sum =
      sum_terms<T>(count, accumulator, block_sum, [&](int64_t begin, int64_t n, T* buffer) {
        for (int64_t i = 0; i < n; ++i) {
          const T error = x[begin + i] - target[begin + i];
          buffer[i] = error * error;
        }
      });
  *loss = canonical_nan(static_cast<T>(sum) / static_cast<T>(count));
}

template <typename T>
void scalar_mse_loss_backward(const T* x, const T* target, T dloss, T* dx, int64_t count) {
  const T factor = T(2) * dloss / static_cast<T>(count);
  parallel_chunks(count, kElementGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) dx[i] = canonical_nan((x[i] - target[i]) * factor);
  });
}

template <typename T>
void scalar_cross_entropy(const T* x, const int32_t* target, T* loss, int64_t rows, int64_t cols,
                          const Accumulator& accumulator) {
  cross_entropy_with<T>(&scalar_block_sum<T>, x, target, loss, rows, cols, accumulator);
}

template <typename T>
void scalar_cross_entropy_backward(const T* x, const int32_t* target, T dloss, T* dx, int64_t rows,
                                   int64_t cols, const Accumulator& accumulator) {
  cross_entropy_backward_with<T>(&scalar_block_sum<T>, x, target, dloss, dx, rows, cols,
                                 accumulator);
}

template <typename T>
void scalar_mse_loss(const T* x, const T* target, T* loss, int64_t count,
                     const Accumulator& accumulator) {
  mse_loss_with<T>(&scalar_block_sum<T>, x, target, loss, count, accumulator);
}

#define LOCKSTEP_INSTANTIATE(T)                                                                    \
  template void cross_entropy_with(BlockSum<T>, const T*, const int32_t*, T*, int64_t, int64_t,    \
                                   const Accumulator&);                                            \
  template void cross_entropy_backward_with(BlockSum<T>, const T*, const int32_t*, T, T*, int64_t, \
                                            int64_t, const Accumulator&);                          \
  template void mse_loss_with(BlockSum<T>, const T*, const T*, T*, int64_t, const Accumulator&);   \
  template void scalar_cross_entropy(const T*, const int32_t*, T*, int64_t, int64_t,               \
                                     const Accumulator&);                                          \
  template void scalar_cross_entropy_backward(const T*, const int32_t*, T, T*, int64_t, int64_t,   \
                                              const Accumulator&);                                 \
  template void scalar_mse_loss(const T*, const T*, T*, int64_t, const Accumulator&);              \
  template void scalar_mse_loss_backward(const T*, const T*, T, T*, int64_t);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep
