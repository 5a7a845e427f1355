// Batch normalisation, one channel at a time; channels are spread over the threads.
#include "emulation/kernels/scalar/elements/batch_norm.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "emulation/accumulator/fast_round.h"
#include "emulation/kernels/scalar/rounding/nearest_round.h"
#include "emulation/kernels/scalar/rounding/squares.h"
#include "src/core/parallel.h"

namespace lockstep {
namespace {

template <typename T>
void normalise(const T* x, T mean, T inv_std, T w, T b, T* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = canonical_nan(((x[i] - mean) * inv_std) * w + b);
}

template <typename T>
void scale_and_add(const T* x, T factor, T rest, T* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = canonical_nan(std::fma(x[i], factor, rest));
}

template <typename T>
void weight_terms(const T* x, const T* dy, T mean, T inv_std, T* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = dy[i] * ((x[i] - mean) * inv_std);
}

template <typename T>
void input_gradient(const T* x, const T* dy, T mean, T inv_std, T factor, T n, T sum_dy,
                    T sum_dy_x_hat, T* dx, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const T x_hat = (x[i] - mean) * inv_std;
    dx[i] = canonical_nan(factor * ((n * dy[i] - sum_dy) - x_hat * sum_dy_x_hat));
  }
}

// Shorter runs of a channel's elements are gathered first: a call for each would take longer.
constexpr int64_t kLeastRun = 16;

// Elements [begin, begin + n) of channel c of an (N,C,S) array, one after the other.
template <typename T, typename Args>
void gather(const Args& a, int64_t channel, int64_t begin, int64_t n, const T* from, T* to) {
  for_channel_runs(a.channels, a.spatial, channel, begin, n, [&](int64_t offset, int64_t length) {
    to = std::copy_n(from + offset, length, to);
  });
}

// Sum of the terms of channel c: terms(in, out, count) computes those of elements of `inputs`.
template <typename T, size_t kInputs, typename Args, typename Terms>
T sum_channel(const Args& a, BlockSum<T> block_sum, int64_t channel,
              const std::array<const T*, kInputs>& inputs, Terms terms) {
  std::vector<T> gathered[kInputs];
  const auto fill = [&](int64_t begin, int64_t n, T* buffer) {
    std::array<const T*, kInputs> in;
    if (a.spatial >= kLeastRun) {
      for_channel_runs(a.channels, a.spatial, channel, begin, n,
                       [&](int64_t offset, int64_t length) {
                         for (size_t k = 0; k < kInputs; ++k) in[k] = inputs[k] + offset;
                         terms(in, buffer, length);
                         buffer += length;
                       });
      return;
    }
    for (size_t k = 0; k < kInputs; ++k) {
      gathered[k].resize(static_cast<size_t>(n));
      gather(a, channel, begin, n, inputs[k], gathered[k].data());
      in[k] = gathered[k].data();
    }
    terms(in, buffer, n);
  };
  return static_cast<T>(sum_terms<T>(a.batch * a.spatial, *a.accumulator, block_sum, fill));
}

// to = map(from) for every element of channel c: map(in, out, count) computes some.
template <typename T, size_t kInputs, typename Args, typename Map>
void map_channel(const Args& a, int64_t channel, const std::array<const T*, kInputs>& inputs,
                 T* output, Map map) {
  std::array<const T*, kInputs> in;
  if (a.spatial >= kLeastRun) {
    for (int64_t n = 0; n < a.batch; ++n) {
      const int64_t offset = (n * a.channels + channel) * a.spatial;
      for (size_t k = 0; k < kInputs; ++k) in[k] = inputs[k] + offset;
      map(in, output + offset, a.spatial);
    }
    return;
  }
  const int64_t count = a.batch * a.spatial;
  std::vector<T> gathered[kInputs];
  for (size_t k = 0; k < kInputs; ++k) {
    gathered[k].resize(static_cast<size_t>(count));
    gather(a, channel, 0, count, inputs[k], gathered[k].data());
    in[k] = gathered[k].data();
  }
  T* out = gathered[0].data();
  map(in, out, count);
  for_channel_runs(a.channels, a.spatial, channel, 0, count, [&](int64_t offset, int64_t length) {
    std::copy_n(out, length, output + offset);
    out += length;
  });
}

template <typename T>
void copy_terms(const std::array<const T*, 1>& in, T* out, int64_t count) {
  std::copy_n(in[0], count, out);
}

template <typename T>
void store(T* array, int64_t index, T value) {
  if (array != nullptr) array[index] = canonical_nan(value);
}

}  // namespace

template <typename T>
void batch_norm_with(const BatchNormLoops<T>& loops, const BatchNormArgs<T>& a) {
  const T n = static_cast<T>(a.batch * a.spatial);
  const T eps = static_cast<T>(a.eps);
  const PartRound<T> round(a.statistics);
  const T take = round(static_cast<T>(a.momentum));
  const bool narrow = a.statistics != nullptr && !a.statistics->is_fp32();
  const T keep = narrow ? round(T(1) - take) : static_cast<T>(1 - a.momentum);
  parallel_for(a.channels, [&](int64_t c) {
    T mean, var;
    if (a.training) {
      mean = sum_channel<T, 1>(a, loops.block_sum, c, {a.x}, copy_terms<T>) / n;
      const T centre = a.spatial == 1 ? round(mean) : mean;
      const T squares = round(sum_channel<T, 1>(a, loops.block_sum, c, {a.x},
                                                [&](const auto& in, T* out, int64_t count) {
                                                  loops.squares(in[0], centre, out, count);
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
    const T factor = inv_std * w, rest = std::fma(-mean, factor, b);
    map_channel<T, 1>(a, c, {a.x}, a.y, [&](const auto& in, T* out, int64_t count) {
      if (a.statistics == nullptr) {
        loops.normalise(in[0], mean, inv_std, w, b, out, count);
      } else {
        loops.scale_and_add(in[0], factor, rest, out, count);
      }
    });
  });
}

template <typename T>
void batch_norm_backward_with(const BatchNormLoops<T>& loops, const BatchNormBackwardArgs<T>& a) {
  const T n = static_cast<T>(a.batch * a.spatial);
  parallel_for(a.channels, [&](int64_t c) {
    const T mean = a.mean[c], inv_std = a.inv_std[c];
    const T w = a.weight != nullptr ? a.weight[c] : T(1);
    const T sum_dy = sum_channel<T, 1>(a, loops.block_sum, c, {a.dy}, copy_terms<T>);
    const T sum_dy_x_hat = sum_channel<T, 2>(
        a, loops.block_sum, c, {a.x, a.dy}, [&](const auto& in, T* out, int64_t count) {
          loops.weight_terms(in[0], in[1], mean, inv_std, out, count);
        });
    store(a.dbias, c, sum_dy);
    store(a.dweight, c, sum_dy_x_hat);
    if (a.dx == nullptr) return;
    if (!a.training) {
      const T factor = w * inv_std;
      map_channel<T, 1>(a, c, {a.dy}, a.dx, [&](const auto& in, T* out, int64_t count) {
        for (int64_t i = 0; i < count; ++i) out[i] = canonical_nan(in[0][i] * factor);
      });
      return;
    }
    const T factor = w * inv_std / n;
    map_channel<T, 2>(a, c, {a.x, a.dy}, a.dx, [&](const auto& in, T* out, int64_t count) {
      loops.input_gradient(in[0], in[1], mean, inv_std, factor, n, sum_dy, sum_dy_x_hat, out,
                           count);
    });
  });
}

template <typename T>
constexpr BatchNormLoops<T> kScalarLoops = {scalar_block_sum<T>, scalar_squares<T>,
                                            normalise<T>,        scale_and_add<T>,
                                            weight_terms<T>,     input_gradient<T>};

template <typename T>
void scalar_batch_norm(const BatchNormArgs<T>& args) {
  batch_norm_with<T>(kScalarLoops<T>, args);
}

template <typename T>
void scalar_batch_norm_backward(const BatchNormBackwardArgs<T>& args) {
  batch_norm_backward_with<T>(kScalarLoops<T>, args);
}

#define LOCKSTEP_INSTANTIATE(T)                                                     \
  template void batch_norm_with(const BatchNormLoops<T>&, const BatchNormArgs<T>&); \
  template void batch_norm_backward_with(const BatchNormLoops<T>&,                  \
                                         const BatchNormBackwardArgs<T>&);          \
  template void scalar_batch_norm(const BatchNormArgs<T>&);                         \
  template void scalar_batch_norm_backward(const BatchNormBackwardArgs<T>&);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep
