// What an op of several parts (attention, a recurrent layer) rounds between them, and the dropout
// masks it draws. For ops/*.cc alone.
#pragma once

#include <vector>

#include "src/core/random.h"
#include "src/graph/ops/op_helpers.h"

namespace lockstep {

template <typename T>
bool is_own_format(const Format* format) {
  return format == nullptr || format->is_fp64() || (format->is_fp32() && sizeof(T) == 4);
}

// Rounds x to the format of output 0. `part` numbers the op's roundings, 1, 2, ...: under
// stochastic rounding each has bits of its own.
template <typename T>
void round_inner(const OpCall& call, T* x, int64_t count, uint64_t part) {
  if (is_own_format<T>(call.inner.format)) return;
  constexpr int kStepBits = 40;  // runs are shorter than 2^40 steps, ops have fewer than 2^24 parts
  QuantizeSpec spec = call.inner;
  spec.key.step += part << kStepBits;
  call.kernels.of<T>().quantize(x, x, count, spec, nullptr);
}

// A value made inside the op as a factor of its next product: x itself, or, where the accumulator
// reads factors of a narrower format (TF32), `storage` with x rounded to nearest in that.
// Requires: x has been through round_inner.
template <typename T>
const T* as_factor(const OpCall& call, const Format* factor, const T* x, int64_t count,
                   std::vector<T>& storage) {
  if (is_own_format<T>(factor)) return x;
  if (call.inner.format != nullptr && contains(*factor, *call.inner.format)) return x;
  storage.resize(static_cast<size_t>(count));
  call.kernels.of<T>().quantize(x, storage.data(), count, {factor}, nullptr);
  return storage.data();
}

// mask[i]: 1 with probability 1 - p, else 0. `part` as in round_inner: the op's masks.
void draw_inner_mask(const RandomKey& key, double p, uint32_t part, int32_t* mask, int64_t count);

// What a kept element is multiplied with: 1 / (1 - p), formed in T; 0 where nothing is kept.
template <typename T>
T dropout_scale(double p) {
  return p < 1 ? T(1) / static_cast<T>(1 - p) : T(0);
}
// y = x mask scale; y may be x.
template <typename T>
void apply_mask(const T* x, const int32_t* mask, T scale, T* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = mask[i] != 0 ? x[i] * scale : x[i] * T(0);
}

// The probability attribute of a node that drops elements while training, 0 when it does not.
inline double active_dropout(const Node& node, std::string_view name) {
  const double p = double_attribute(node, name, 0);
  require(p >= 0 && p <= 1, node,
          "attribute '" + std::string(name) + "' is " + std::to_string(p) + ", must be in [0, 1]");
  return bool_attribute(node, "training", true) ? p : 0;
}

}  // namespace lockstep
