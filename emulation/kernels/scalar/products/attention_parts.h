// The parts shared by attention.cc and blocked_attention.cc: products over stacks of matrices,
// masks, the weights, shared heads. Only for these two files.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "emulation/kernels/args/attention_args.h"

namespace lockstep {

// The op's roundings, see InnerMath::round.
enum AttentionPart : uint64_t {
  kScaledQ = 1,
  kScaledK,
  kScores,
  kMasked,
  kProbabilities,
  kDropped,
  kScoreGradient,
  kQueryGradient,
  kKeyGradient,
  kScaledKeyGradient,
  kValueGradient,
  kBlocks  // and all above: kBlocks + 3 i + 0, 1, 2 before the i-th block joins dq, dk, dv
};

// Matrix i of the stacks uses matrix i / group; empty where that is its own.
inline std::vector<int64_t> shared_matrices(int64_t stacks, int64_t group) {
  std::vector<int64_t> matrices(static_cast<size_t>(group == 1 ? 0 : stacks));
  for (size_t i = 0; i < matrices.size(); ++i) matrices[i] = static_cast<int64_t>(i) / group;
  return matrices;
}

// C (m,n) = op(a) op(b) for every stack; `a_group`, `b_group`: how many stacks share a matrix.
template <typename T>
struct Product {
  bool transpose_a, transpose_b;
  const T *a, *b;
  int64_t m, n, k;
  T* c;
  int64_t a_group = 1, b_group = 1;
  uint8_t* events = nullptr;
};
template <typename Args, typename T>
void multiply(const Args& args, const Product<T>& p) {
  StackedGemm<T> stack;
  stack.count = args.shape.stacks;
  stack.a_matrices = shared_matrices(stack.count, p.a_group);
  stack.b_matrices = shared_matrices(stack.count, p.b_group);
  GemmArgs<T>& gemm = stack.product;
  gemm.transpose_a = p.transpose_a, gemm.transpose_b = p.transpose_b;
  gemm.m = p.m, gemm.n = p.n, gemm.k = p.k;
  gemm.a = p.a, gemm.lda = p.transpose_a ? p.m : p.k;
  gemm.b = p.b, gemm.ldb = p.transpose_b ? p.k : p.n;
  gemm.c = p.c, gemm.ldc = p.n;
  gemm.accumulator = args.math.gemm_accumulator;
  gemm.a_format = args.math.a_format, gemm.b_format = args.math.b_format;
  gemm.events = p.events;
  args.math.kernels->stacked_gemm(*args.math.kernels, stack);
}

template <typename T>
struct Factor {
  std::vector<T> own, storage;
  const T* data = nullptr;
};

// Probabilities (or weights not yet normalised) after dropout, as the factor of v.
template <typename T>
Factor<T> weights_of(const InnerMath<T>& math, const T* probabilities, const int32_t* mask,
                     double dropout, int64_t count) {
  Factor<T> weights;
  if (mask != nullptr) {
    weights.own.resize(static_cast<size_t>(count));
    math.kernels->masked_scale(probabilities, mask, dropout_scale<T>(dropout), weights.own.data(),
                               count);
  } else {
    weights.own.assign(probabilities, probabilities + count);
  }
  math.round(weights.own.data(), count, kDropped);
  weights.data = math.as_factor(weights.own.data(), count, weights.storage);
  return weights;
}

template <typename T>
void mask_scores(const AttentionForward<T>& args, T* scores) {
  constexpr T kMinusInfinity = -std::numeric_limits<T>::infinity();
  const AttentionShape& s = args.shape;
  if (args.causal) {
    for (int64_t row = 0; row < s.stacks * s.queries; ++row) {
      const int64_t first = std::min(row % s.queries + 1, s.keys);
      std::fill(scores + row * s.keys + first, scores + (row + 1) * s.keys, kMinusInfinity);
    }
  }
  if (args.added_mask != nullptr) {
    args.math.kernels->add(scores, args.added_mask, scores, s.scores());
  }
  if (args.keep_mask != nullptr) {
    args.math.kernels->select(args.keep_mask, scores, nullptr, kMinusInfinity, scores, s.scores());
  }
}

// scores = scale q k^T + mask, neither scale nor scores rounded.
template <typename T>
void form_scores(const AttentionForward<T>& args, T* scores) {
  const AttentionShape& s = args.shape;
  multiply(args, Product<T>{false, true, args.q, args.k, s.queries, s.keys, s.width, scores, 1,
                            s.k_group});
  args.math.kernels->scale(scores, static_cast<T>(args.scale), scores, s.scores());
  mask_scores(args, scores);
}

}  // namespace lockstep
