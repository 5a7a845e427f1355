// See attention.h. Products go matrix by matrix through the gemm kernel, softmax through its own.
// Fused kernels that work in blocks are in blocked_attention.cc.
#include "emulation/kernels/scalar/products/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "emulation/kernels/scalar/products/attention_parts.h"
#include "emulation/kernels/scalar/products/blocked_attention.h"

namespace lockstep {
namespace {

// x times `factor`, rounded, as a factor: the math models multiply q and k by it.
template <typename T>
Factor<T> scaled_factor(const InnerMath<T>& math, const T* x, int64_t count, T factor,
                        AttentionPart part) {
  Factor<T> scaled;
  scaled.own.resize(static_cast<size_t>(count));
  math.kernels->scale(x, factor, scaled.own.data(), count);
  math.round(scaled.own.data(), count, part);
  scaled.data = math.as_factor(scaled.own.data(), count, scaled.storage);
  return scaled;
}
// The two halves of the scale, for q and for k.
template <typename T>
std::pair<T, T> half_scales(double scale) {
  const T root = static_cast<T>(std::sqrt(std::fabs(scale)));
  return {static_cast<T>(std::copysign(root, scale)), root};
}

// Softmax in place; a row of only -inf gives zeros, as in torch's attention.
template <typename T>
void safe_softmax(const InnerMath<T>& math, int64_t rows, int64_t cols, T* scores) {
  constexpr T kMinusInfinity = -std::numeric_limits<T>::infinity();
  std::vector<int64_t> masked_rows;
  for (int64_t row = 0; row < rows; ++row) {
    const T* x = scores + row * cols;
    if (x[0] == kMinusInfinity &&
        std::all_of(x, x + cols, [](T v) { return v == kMinusInfinity; })) {
      masked_rows.push_back(row);
    }
  }
  math.kernels->softmax(scores, scores, rows, cols, *math.reduce_accumulator);
  for (const int64_t row : masked_rows) std::fill_n(scores + row * cols, cols, T(0));
}

// y (stacks / group, size) = the sums over the groups of x (stacks, size).
template <typename T>
void sum_groups(const InnerMath<T>& math, const T* x, int64_t stacks, int64_t group, int64_t size,
                T* y) {
  for (int64_t i = 0; i < stacks / group; ++i) {
    math.kernels->channel_sum(x + i * group * size, y + i * size, group, size, 1,
                              *math.reduce_accumulator);
  }
}

// Only kMathReduced rounds between its parts; kFlash rounds factors.
template <typename T>
InnerMath<T> rounding_of(const InnerMath<T>& math, AttentionModel model) {
  InnerMath<T> own = math;
  if (model == AttentionModel::kMath) own.rounding.format = nullptr;
  return own;
}

}  // namespace

template <typename T>
void attention_forward(const AttentionForward<T>& given) {
  AttentionForward<T> args = given;
  args.math = rounding_of(given.math, given.model);
  const InnerMath<T>& math = args.math;
  const AttentionShape& s = args.shape;
  T* scores = args.probabilities;
  if (args.model == AttentionModel::kFlash) {
    if (args.flash->in_blocks()) return blocked_attention_forward(args);
    form_scores(args, scores);
    safe_softmax(math, s.stacks * s.queries, s.keys, scores);
  } else {
    const auto [q_scale, k_scale] = half_scales<T>(args.scale);
    const int64_t k_count = s.stacks / s.k_group * s.keys * s.width;
    const Factor<T> q =
        scaled_factor(math, args.q, s.stacks * s.queries * s.width, q_scale, kScaledQ);
    const Factor<T> k = scaled_factor(math, args.k, k_count, k_scale, kScaledK);
    multiply(args, Product<T>{false, true, q.data, k.data, s.queries, s.keys, s.width, scores, 1,
                              s.k_group});
    math.round(scores, s.scores(), kScores);
    mask_scores(args, scores);
    math.round(scores, s.scores(), kMasked);
    safe_softmax(math, s.stacks * s.queries, s.keys, scores);
    math.round(scores, s.scores(), kProbabilities);
  }
  const Factor<T> weights = weights_of(math, scores, args.dropout_mask, args.dropout, s.scores());
  multiply(args, Product<T>{false, false, weights.data, args.v, s.queries, s.value_width, s.keys,
                            args.y, 1, s.v_group, args.events});
}

template <typename T>
void attention_backward(const AttentionBackward<T>& given) {
  AttentionBackward<T> args = given;
  args.math = rounding_of(given.math, given.model);
  const InnerMath<T>& math = args.math;
  const AttentionShape& s = args.shape;
  const bool flash = args.model == AttentionModel::kFlash;
  if (flash && args.flash->in_blocks()) return blocked_attention_backward(args);
  const int64_t k_size = s.keys * s.width, v_size = s.keys * s.value_width;
  const auto gradients = [&](int64_t group, int64_t size) {
    return std::vector<T>(static_cast<size_t>(group == 1 ? 0 : s.stacks * size));
  };

  const Factor<T> weights =
      weights_of(math, args.probabilities, args.dropout_mask, args.dropout, s.scores());
  std::vector<T> dv_each = gradients(s.v_group, v_size);
  T* dv = dv_each.empty() ? args.dv : dv_each.data();
  multiply(args,
           Product<T>{true, false, weights.data, args.dy, s.keys, s.value_width, s.queries, dv});
  if (!dv_each.empty()) {
    if (!flash) math.round(dv, s.stacks * v_size, kValueGradient);
    sum_groups(math, dv, s.stacks, s.v_group, v_size, args.dv);
  }

  std::vector<T> ds(static_cast<size_t>(s.scores()));
  multiply(args, Product<T>{false, true, args.dy, args.v, s.queries, s.keys, s.value_width,
                            ds.data(), 1, s.v_group});
  if (!flash) math.round(ds.data(), s.scores(), kScores);
  if (args.dropout_mask != nullptr) {
    math.kernels->masked_scale(ds.data(), args.dropout_mask, dropout_scale<T>(args.dropout),
                               ds.data(), s.scores());
    if (!flash) math.round(ds.data(), s.scores(), kMasked);
  }
  math.kernels->softmax_backward(args.probabilities, ds.data(), ds.data(), s.stacks * s.queries,
                                 s.keys, *math.reduce_accumulator);
  math.round(ds.data(), s.scores(), kScoreGradient);
  std::vector<T> storage;
  const T* factor = math.as_factor(ds.data(), s.scores(), storage);

  Factor<T> q, k;
  q.data = args.q, k.data = args.k;
  T q_scale = static_cast<T>(args.scale), k_scale = q_scale;  // factors of dq and dk
  if (!flash) {
    std::tie(q_scale, k_scale) = half_scales<T>(args.scale);
    q = scaled_factor(math, args.q, s.stacks * s.queries * s.width, q_scale, kScaledQ);
    k = scaled_factor(math, args.k, s.stacks / s.k_group * k_size, k_scale, kScaledK);
  }
  std::vector<T> dk_each = gradients(s.k_group, k_size);
  T* dk = dk_each.empty() ? args.dk : dk_each.data();
  const int64_t q_count = s.stacks * s.queries * s.width, k_count = s.stacks * k_size;
  multiply(args, Product<T>{false, false, factor, k.data, s.queries, s.width, s.keys, args.dq, 1,
                            s.k_group});
  multiply(args, Product<T>{true, false, factor, q.data, s.keys, s.width, s.queries, dk});
  if (!flash) {
    math.round(args.dq, q_count, kQueryGradient);
    math.round(dk, k_count, kKeyGradient);
  }
  math.kernels->scale(args.dq, q_scale, args.dq, q_count);
  math.kernels->scale(dk, k_scale, dk, k_count);
  if (dk_each.empty()) return;
  if (!flash) math.round(dk, k_count, kScaledKeyGradient);
  sum_groups(math, dk, s.stacks, s.k_group, k_size, args.dk);
}

#define LOCKSTEP_INSTANTIATE(T)                                \
  template void attention_forward(const AttentionForward<T>&); \
  template void attention_backward(const AttentionBackward<T>&);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep
