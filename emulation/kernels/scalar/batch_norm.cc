// Batch normalisation, one channel at a time; channels are spread over the threads.
#include "emulation/kernels/scalar/batch_norm.h"

#include <cmath>

#include "emulation/accumulator/fast_round.h"
#include "emulation/kernels/scalar/nearest_round.h"
#include "src/core/parallel.h"

namespace lockstep {
namespace {

// Sum over channel c of term(offset), offset into an (N,C,S) array.
template <typename T, typename Args, typename Term>
T sum_channel(const Args& a, BlockSum<T> block_sum, int64_t channel, Term term) {
  return static_cast<T>(sum_terms<T>(a.batch * a.spatial, *a.accumulator, block_sum,
                                     [&](int64_t begin, int64_t n, T* buffer) {
                                       for_channel_runs(a.channels, a.spatial, channel, begin, n,
                                                        [&](int64_t offset, int64_t length) {
                                                          for (int64_t i = 0; i < length; ++i)
                                                            *buffer++ = term(offset + i);
                                                        });
                                     }));
}

// Calls body(offset) for every element of channel c.
template <typename Args, typename Body>
void for_channel(const Args& a, int64_t channel, Body body) {
  for (int64_t n = 0; n < a.batch; ++n) {
    const int64_t begin = (n * a.channels + channel) * a.spatial;
    for (int64_t i = begin; i < begin + a.spatial; ++i) body(i);
  }
}

template <typename T>
void store(T* array, int64_t index, T value) {
  if (array != nullptr) array[index] = canonical_nan(value);
}

}  // namespace

template <typename T>
void batch_norm_with(BlockSum<T> block_sum, const BatchNormArgs<T>& a) {
  const T n = static_cast<T>(a.batch * a.spatial);
  const T eps = static_cast<T>(a.eps);
  const PartRound<T> round(a.statistics);
  const T take = round(static_cast<T>(a.momentum));
  const bool narrow = a.statistics != nullptr && !a.statistics->is_fp32();
  const T keep = narrow ? round(T(1) - take) : static_cast<T>(1 - a.momentum);
  parallel_for(a.channels, [&](int64_t c) {
    T mean, var;
    if (a.training) {
      mean = sum_channel<T>(a, block_sum, c, [&](int64_t i) { return a.x[i]; }) / n;
      const T centre = a.spatial == 1 ? round(mean) : mean;
      const T squares = round(sum_channel<T>(a, block_sum, c, [&](int64_t i) {
        const T centred = a.x[i] - centre;
        return centred * centred;
      }));
      mean = round(mean);
      var = round(squares / round(n));
      const T unbiased = narrow ? round(squares / round(n - 1)) : var * (n / (n - 1));
      if (a.running_mean != nullptr) {
        store(a.new_running_mean, c, round(keep * a.running_mean[c]) + round(take * mean));
        store(a.new_running_var, c, round(keep * a.running_var[c]) + round(take * unbiased));
      }
    } else {
      mean = a.running_mean[c];
      var = a.running_var[c];
      store(a.new_running_mean, c, mean);
      store(a.new_running_var, c, var);
    }
    const T inv_std = round(T(1) / std::sqrt(var + eps));
    const T w = a.weight != nullptr ? a.weight[c] : T(1);
    const T b = a.bias != nullptr ? a.bias[c] : T(0);
    store(a.mean, c, mean);
    store(a.inv_std, c, inv_std);
    if (a.statistics == nullptr) {
      for_channel(a, c,
                  [&](int64_t i) { a.y[i] = canonical_nan(((a.x[i] - mean) * inv_std) * w + b); });
      return;
    }
    const T factor = inv_std * w, rest = std::fma(-mean, factor, b);
    for_channel(a, c, [&](int64_t i) { a.y[i] = canonical_nan(std::fma(a.x[i], factor, rest)); });
  });
}

template <typename T>
void batch_norm_backward_with(BlockSum<T> block_sum, const BatchNormBackwardArgs<T>& a) {
  const T n = static_cast<T>(a.batch * a.spatial);
  parallel_for(a.channels, [&](int64_t c) {
    const T mean = a.mean[c], inv_std = a.inv_std[c];
    const T w = a.weight != nullptr ? a.weight[c] : T(1);
    const auto x_hat = [&](int64_t i) { return (a.x[i] - mean) * inv_std; };
    const T sum_dy = sum_channel<T>(a, block_sum, c, [&](int64_t i) { return a.dy[i]; });
    const T sum_dy_x_hat =
        sum_channel<T>(a, block_sum, c, [&](int64_t i) { return a.dy[i] * x_hat(i); });
    store(a.dbias, c, sum_dy);
    store(a.dweight, c, sum_dy_x_hat);
    if (a.dx == nullptr) return;
    if (!a.training) {
      const T factor = w * inv_std;
      for_channel(a, c, [&](int64_t i) { a.dx[i] = canonical_nan(a.dy[i] * factor); });
      return;
    }
    const T factor = w * inv_std / n;
    for_channel(a, c, [&](int64_t i) {
      a.dx[i] = canonical_nan(factor * ((n * a.dy[i] - sum_dy) - x_hat(i) * sum_dy_x_hat));
    });
  });
}

template <typename T>
void scalar_batch_norm(const BatchNormArgs<T>& args) {
  batch_norm_with<T>(&scalar_block_sum<T>, args);
}

template <typename T>
void scalar_batch_norm_backward(const BatchNormBackwardArgs<T>& args) {
  batch_norm_backward_with<T>(&scalar_block_sum<T>, args);
}

#define LOCKSTEP_INSTANTIATE(T)                                                         \
  template void batch_norm_with(BlockSum<T>, const BatchNormArgs<T>&);                  \
  template void batch_norm_backward_with(BlockSum<T>, const BatchNormBackwardArgs<T>&); \
  template void scalar_batch_norm(const BatchNormArgs<T>&);                             \
  template void scalar_batch_norm_backward(const BatchNormBackwardArgs<T>&);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep
