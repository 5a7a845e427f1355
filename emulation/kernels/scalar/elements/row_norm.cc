// Row normalisation; rows, then columns of the weights' gradients, are spread over the threads.
#include "emulation/kernels/scalar/elements/row_norm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "emulation/accumulator/fast_round.h"
#include "emulation/kernels/scalar/rounding/nearest_round.h"
#include "emulation/kernels/scalar/rounding/squares.h"
#include "src/core/chunks.h"

namespace lockstep {
namespace {

// A weight for every element of the rows of all groups, so that a row and its weights are
// contiguous.
template <typename T>
std::vector<T> spread_weights(const T* weight, T absent, int64_t count, int64_t spatial) {
  std::vector<T> spread(static_cast<size_t>(count), absent);
  for (int64_t i = 0; weight != nullptr && i < count; ++i) {
    spread[static_cast<size_t>(i)] = weight[i / spatial];
  }
  return spread;
}

template <typename T>
void normalise(const T* x, T mean, T inv_std, const T* w, const T* b, T* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    y[i] = canonical_nan(((x[i] - mean) * inv_std) * w[i] + b[i]);
  }
}

template <typename T>
void terms(const T* x, const T* dy, T mean, T inv_std, const T* w, T* g, T* g_x_hat,
           int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    g[i] = dy[i] * w[i];
    g_x_hat[i] = g[i] * ((x[i] - mean) * inv_std);
  }
}

template <typename T>
void input_gradient(const T* x, const T* g, T mean, T inv_std, T sum_g, T sum_g_x_hat, T* dx,
                    int64_t count) {
  const T n = static_cast<T>(count), factor = inv_std / n;
  for (int64_t i = 0; i < count; ++i) {
    const T x_hat = (x[i] - mean) * inv_std;
    dx[i] = canonical_nan(factor * ((n * g[i] - sum_g) - x_hat * sum_g_x_hat));
  }
}

template <typename T>
constexpr RowNormLoops<T> kScalarLoops = {scalar_block_sum<T>, scalar_squares<T>, normalise<T>,
                                          terms<T>, input_gradient<T>};

// dweight and dbias of one channel: the sums over (row, spatial) in ascending order.
template <typename T>
void channel_gradient(BlockSum<T> block_sum, const RowNormBackwardArgs<T>& a, int64_t channel) {
  const int64_t channels = a.groups * a.cols / a.spatial;
  const auto sum = [&](auto term) {
    const auto fill = [&](int64_t begin, int64_t n, T* buffer) {
      for_channel_runs(channels, a.spatial, channel, begin, n, [&](int64_t at, int64_t length) {
        const int64_t row = at / a.cols;
        for (int64_t i = at; i < at + length; ++i) *buffer++ = term(row, i);
      });
    };
    const int64_t count = a.rows / a.groups * a.spatial;
    return static_cast<T>(sum_terms<T>(count, *a.accumulator, block_sum, fill));
  };
  if (a.dbias != nullptr) {
    a.dbias[channel] = sum([&](int64_t, int64_t i) { return a.dy[i]; });
  }
  if (a.dweight == nullptr) return;
  a.dweight[channel] = sum([&](int64_t row, int64_t i) {
    const T mean = a.centred ? a.mean[row] : T(0);
    return a.dy[i] * ((a.x[i] - mean) * a.inv_std[row]);
  });
}

// dweight and dbias of column c of layer_norm, rounded to weight_sums after every row.
template <typename T>
void rounded_column_gradient(const RowNormBackwardArgs<T>& a, const PartRound<T>& round,
                             int64_t c) {
  const int64_t part = (a.rows + a.weight_parts - 1) / a.weight_parts;
  T dweight = 0, dbias = 0;
  for (int64_t begin = 0; begin < a.rows; begin += part) {
    T part_dw = 0, part_db = 0;
    for (int64_t row = begin; row < std::min(begin + part, a.rows); ++row) {
      const T scale = a.inv_std[row], shift = -scale * a.mean[row];
      const T dy = a.dy[row * a.cols + c];
      part_dw = round(part_dw + dy * (scale * a.x[row * a.cols + c] + shift));
      part_db = round(part_db + dy);
    }
    dweight += part_dw;
    dbias += part_db;
  }
  if (a.dweight != nullptr) a.dweight[c] = canonical_nan(dweight);
  if (a.dbias != nullptr) a.dbias[c] = canonical_nan(dbias);
}

}  // namespace

template <typename T>
void row_norm_with(const RowNormLoops<T>& loops, const RowNormArgs<T>& a) {
  const std::vector<T> weight = spread_weights(a.weight, T(1), a.groups * a.cols, a.spatial);
  const std::vector<T> bias = spread_weights(a.bias, T(0), a.groups * a.cols, a.spatial);
  const T n = static_cast<T>(a.cols), eps = static_cast<T>(a.eps);
  const PartRound<T> round(a.statistics);
  parallel_chunks(a.rows, row_grain(a.cols), [&](int64_t begin, int64_t end) {
    std::vector<T> buffer(static_cast<size_t>(a.cols));
    const auto sum = [&](const T* values) {
      return static_cast<T>(sum_array<T>(values, a.cols, *a.accumulator, loops.block_sum));
    };
    for (int64_t row = begin; row < end; ++row) {
      const T* x = a.x + row * a.cols;
      T mean = a.centred ? sum(x) / n : T(0);
      loops.squares(x, mean, buffer.data(), a.cols);
      mean = round(mean);
      const T var = round(round(sum(buffer.data())) / round(n));
      const T inv_std = round(T(1) / std::sqrt(var + eps));
      const int64_t group = row % a.groups * a.cols;
      loops.normalise(x, mean, inv_std, weight.data() + group, bias.data() + group,
                      a.y + row * a.cols, a.cols);
      if (a.mean != nullptr) a.mean[row] = canonical_nan(mean);
      a.inv_std[row] = canonical_nan(inv_std);
    }
  });
}

template <typename T>
void row_norm_backward_with(const RowNormLoops<T>& loops, const RowNormBackwardArgs<T>& a) {
  const std::vector<T> weight = spread_weights(a.weight, T(1), a.groups * a.cols, a.spatial);
  parallel_chunks(a.rows, row_grain(a.cols), [&](int64_t begin, int64_t end) {
    std::vector<T> product(static_cast<size_t>(a.cols));
    const auto sum = [&](const T* values) {
      return static_cast<T>(sum_array<T>(values, a.cols, *a.accumulator, loops.block_sum));
    };
    for (int64_t row = begin; row < end; ++row) {
      const int64_t at = row * a.cols;
      const T mean = a.centred ? a.mean[row] : T(0), inv_std = a.inv_std[row];
      T* g = a.dx + at;
      loops.terms(a.x + at, a.dy + at, mean, inv_std, weight.data() + row % a.groups * a.cols, g,
                  product.data(), a.cols);
      const T sum_g = a.centred ? sum(g) : T(0);
      loops.input_gradient(a.x + at, g, mean, inv_std, sum_g, sum(product.data()), g, a.cols);
    }
  });
  if (a.dweight == nullptr && a.dbias == nullptr) return;
  const int64_t channels = a.groups * a.cols / a.spatial;
  if (a.weight_sums != nullptr) {
    const PartRound<T> round(a.weight_sums);
    parallel_chunks(channels, row_grain(a.rows), [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) rounded_column_gradient(a, round, c);
    });
    return;
  }
  if (loops.column_sums != nullptr && a.groups == 1 && a.spatial == 1 &&
      adds_natively<T>(*a.accumulator)) {
    parallel_chunks(channels, kColumnTile,
                    [&](int64_t begin, int64_t end) { loops.column_sums(a, begin, end); });
    return;
  }
  parallel_chunks(channels, row_grain(a.rows / a.groups * a.spatial),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t c = begin; c < end; ++c) channel_gradient(loops.block_sum, a, c);
                  });
}

template <typename T>
void scalar_row_norm(const RowNormArgs<T>& args) {
  row_norm_with(kScalarLoops<T>, args);
}
template <typename T>
void scalar_row_norm_backward(const RowNormBackwardArgs<T>& args) {
  row_norm_backward_with(kScalarLoops<T>, args);
}

#define LOCKSTEP_INSTANTIATE(T)                                                                \
  template void row_norm_with(const RowNormLoops<T>&, const RowNormArgs<T>&);                  \
  template void row_norm_backward_with(const RowNormLoops<T>&, const RowNormBackwardArgs<T>&); \
  template void scalar_row_norm(const RowNormArgs<T>&);                                        \
  template void scalar_row_norm_backward(const RowNormBackwardArgs<T>&);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep
