// Softmax row by row; rows are spread over the threads.
#include "emulation/scalar/softmax.h"

#include <vector>

#include "emulation/fast_round.h"
#include "emulation/math.h"
#include "emulation/scalar/chunks.h"

namespace lockstep {

template <typename T>
void softmax_with(BlockSum<T> block_sum, const T* x, T* y, int64_t rows, int64_t cols,
                  const Accumulator& accumulator) {
  parallel_chunks(rows, row_grain(cols), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* in = x + row * cols;
      T* out = y + row * cols;
      const T max = row_max(in, cols);
      for (int64_t i = 0; i < cols; ++i) out[i] = lockstep_exp<T>(in[i] - max);
      const T sum = static_cast<T>(sum_array<T>(out, cols, accumulator, block_sum));
      for (int64_t i = 0; i < cols; ++i) out[i] = canonical_nan(out[i] / sum);
    }
  });
}

template <typename T>
void softmax_backward_with(BlockSum<T> block_sum, const T* y, const T* dy, T* dx, int64_t rows,
                           int64_t cols, const Accumulator& accumulator) {
  parallel_chunks(rows, row_grain(cols), [&](int64_t begin, int64_t end) {
    std::vector<T> product(static_cast<size_t>(cols));
    for (int64_t row = begin; row < end; ++row) {
      const int64_t base = row * cols;
      for (int64_t i = 0; i < cols; ++i) {
        product[static_cast<size_t>(i)] = dy[base + i] * y[base + i];
      }
      const T sum = static_cast<T>(sum_array<T>(product.data(), cols, accumulator, block_sum));
      for (int64_t i = base; i < base + cols; ++i) dx[i] = canonical_nan(y[i] * (dy[i] - sum));
    }
  });
}

template <typename T>
void scalar_softmax(const T* x, T* y, int64_t rows, int64_t cols, const Accumulator& accumulator) {
  softmax_with<T>(&scalar_block_sum<T>, x, y, rows, cols, accumulator);
}

template <typename T>
void scalar_softmax_backward(const T* y, const T* dy, T* dx, int64_t rows, int64_t cols,
                             const Accumulator& accumulator) {
  softmax_backward_with<T>(&scalar_block_sum<T>, y, dy, dx, rows, cols, accumulator);
}

#define LOCKSTEP_INSTANTIATE(T)                                                                \
  template void softmax_with(BlockSum<T>, const T*, T*, int64_t, int64_t, const Accumulator&); \
  template void softmax_backward_with(BlockSum<T>, const T*, const T*, T*, int64_t, int64_t,   \
                                      const Accumulator&);                                     \
  template void scalar_softmax(const T*, T*, int64_t, int64_t, const Accumulator&);            \
  template void scalar_softmax_backward(const T*, const T*, T*, int64_t, int64_t,              \
                                        const Accumulator&);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep
