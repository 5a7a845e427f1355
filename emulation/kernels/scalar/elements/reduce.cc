// Plain sums in the fixed shape, and channel_sum over any block sum.
#include "emulation/kernels/scalar/elements/reduce.h"

#include <type_traits>
#include <utility>

#include "emulation/accumulator/dot.h"
#include "emulation/accumulator/fast_round.h"
#include "src/core/chunks.h"

namespace lockstep {

template <typename T>
double scalar_block_sum(const T* terms, int64_t count, const Accumulator& accumulator) {
  const Format& format = *accumulator.format;
  const auto term = [&](int64_t i) { return terms[i]; };
  if constexpr (std::is_same_v<T, float>) {
    if (format.is_fp32()) {
      return canonical_nan(
          reduce_fixed<float>(count, term, [](float x, float y) { return x + y; }));
    }
    const FastRound round(format);
    return canonical_nan(
        reduce_fixed<double>(count, term, [&](double acc, double x) { return round.add(acc, x); }));
  } else {
    return canonical_nan(reduce_fixed<double>(count, term, [&](double acc, double x) {
      return format.is_fp64() ? acc + x : accumulate_add(accumulator, acc, x);
    }));
  }
}

double join_block_sums(std::vector<double> sums, const Accumulator& accumulator) {
  return canonical_nan(join_blocks(
      std::move(sums), [&](double x, double y) { return accumulate_add(accumulator, x, y); }));
}

namespace {

// The sums of columns [first, last) of x (rows, columns): a column alone would take one element of
// every cache line.
template <typename T>
void sum_columns(BlockSum<T> block_sum, const T* x, T* y, int64_t rows, int64_t columns,
                 int64_t first, int64_t last, const Accumulator& accumulator) {
  const int64_t n = last - first, most = std::min(rows, kReductionBlock);
  std::vector<T> transposed(static_cast<size_t>(n * most));
  std::vector<std::vector<double>> sums(static_cast<size_t>(n));
  for (int64_t begin = 0; begin < rows; begin += kReductionBlock) {
    const int64_t count = std::min(kReductionBlock, rows - begin);
    for (int64_t row = 0; row < count; ++row) {
      const T* from = x + (begin + row) * columns + first;
      for (int64_t i = 0; i < n; ++i) transposed[static_cast<size_t>(i * most + row)] = from[i];
    }
    for (int64_t i = 0; i < n; ++i) {
      sums[static_cast<size_t>(i)].push_back(
          block_sum(transposed.data() + i * most, count, accumulator));
    }
  }
  for (std::vector<double>& column : sums) {
    y[first++] = static_cast<T>(join_block_sums(std::move(column), accumulator));
  }
}

}  // namespace

template <typename T>
void channel_sum_with(BlockSum<T> block_sum, const T* x, T* y, int64_t outer, int64_t channels,
                      int64_t inner, const Accumulator& accumulator) {
  if (inner == 1 && channels > 1) {
    constexpr int64_t kLine = 64 / sizeof(T);
    parallel_chunks(channels, kLine, [&](int64_t first, int64_t last) {
      sum_columns(block_sum, x, y, outer, channels, first, last, accumulator);
    });
    return;
  }
  parallel_for(channels, [&](int64_t channel) {
    const double sum = sum_terms<T>(
        outer * inner, accumulator, block_sum, [&](int64_t begin, int64_t n, T* buffer) {
          for_channel_runs(channels, inner, channel, begin, n, [&](int64_t offset, int64_t length) {
            buffer = std::copy(x + offset, x + offset + length, buffer);
          });
        });
    y[channel] = static_cast<T>(sum);
  });
}

template <typename T>
void scalar_channel_sum(const T* x, T* y, int64_t outer, int64_t channels, int64_t inner,
                        const Accumulator& accumulator) {
  channel_sum_with<T>(&scalar_block_sum<T>, x, y, outer, channels, inner, accumulator);
}

#define LOCKSTEP_INSTANTIATE(T)                                                        \
  template double scalar_block_sum(const T*, int64_t, const Accumulator&);             \
  template void channel_sum_with(BlockSum<T>, const T*, T*, int64_t, int64_t, int64_t, \
                                 const Accumulator&);                                  \
  template void scalar_channel_sum(const T*, T*, int64_t, int64_t, int64_t, const Accumulator&);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep
