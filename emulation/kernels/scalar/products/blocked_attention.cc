// See blocked_attention.h. Element-wise roundings run over whole arrays; the bits are the same as
// block by block.
#include "emulation/kernels/scalar/products/blocked_attention.h"

#include <cmath>
#include <limits>

#include "emulation/kernels/scalar/elements/reduce.h"
#include "emulation/kernels/scalar/elements/rows.h"
#include "emulation/kernels/scalar/elements/softmax.h"
#include "emulation/kernels/scalar/products/attention_parts.h"
#include "emulation/math/fast_exp.h"
#include "src/core/chunks.h"

namespace lockstep {
namespace {

template <typename T>
constexpr T kMinusInfinity = -std::numeric_limits<T>::infinity();

// y = exp(x) of `count` scores of one block, in place or not.
template <typename T>
void exp_of_block(const InnerMath<T>& math, const FlashKernel& kernel, const T* x, T* y,
                  int64_t count) {
  int64_t i = 0;
  if constexpr (std::is_same_v<T, float>) {
    if (kernel.fast_exp_keys > 0 && !math.is_own_format(math.rounding.format)) {
      for (; i < count / kernel.fast_exp_keys * kernel.fast_exp_keys; ++i) y[i] = fast_exp(x[i]);
    }
  }
  math.kernels->row.exp(x + i, y + i, count - i);
}

// One row of scores: its e, their sum l, the maximum, and the factor by which every block scales
// down the blocks before it.
template <typename T>
struct SoftmaxRow {
  T max = kMinusInfinity<T>, sum = 0;

  void take(const InnerMath<T>& math, const FlashKernel& kernel, const T* scores, T* e, T* shrink,
            int64_t keys) {
    for (int64_t first = 0; first < keys; first += kernel.key_block, ++shrink) {
      const int64_t count = std::min(kernel.key_block, keys - first);
      const T block_max = row_max(scores + first, count);
      const T before = max;
      max = before > block_max ? before : block_max;
      *shrink = 1;
      if (max == kMinusInfinity<T>) {  // no key yet
        std::fill_n(e + first, count, T(0));
        continue;
      }
      for (int64_t i = first; i < first + count; ++i) e[i] = scores[i] - max;
      exp_of_block(math, kernel, e + first, e + first, count);
      T below = before - max;
      math.kernels->row.exp(&below, shrink, 1);
      const T block_sum = static_cast<T>(
          sum_array<T>(e + first, count, *math.reduce_accumulator, math.kernels->row.block_sum));
      sum = block_sum + *shrink * sum;
    }
  }
};

// Sums of products in blocks of their terms; each of the stacks has product.k terms:
//   C[j] (m,n) = factor sum over the stacks i = c_group j, c_group j + 1, ... of op(a[i]) b[i]
template <typename T>
struct BlockedSum {
  GemmArgs<T> product = {};          // of the first stack, all its terms
  int64_t a_size = 0, b_size = 0;    // of a matrix
  int64_t b_group = 1, c_group = 1;  // consecutive stacks that share a matrix
  int64_t block = 0;
  T factor = 1;

  // Into c, or added to c: a block of the stacks with number `member` in their group.
  void multiply(const InnerMath<T>& math, int64_t stacks, int64_t member, int64_t first,
                bool start_from_c, T* c) const {
    parallel_for(stacks / c_group, [&](int64_t j) {
      const int64_t i = j * c_group + member;
      GemmArgs<T> gemm = product;
      gemm.k = std::min(block, product.k - first);
      gemm.a += i * a_size + first * (gemm.transpose_a ? gemm.lda : 1);
      gemm.b += i / b_group * b_size + first * gemm.ldb;
      gemm.c = c + j * gemm.m * gemm.n;
      gemm.start_from_c = start_from_c;
      if (gemm.events != nullptr) gemm.events += i * gemm.m * gemm.n;
      gemm.accumulator = math.gemm_accumulator;
      gemm.a_format = math.a_format, gemm.b_format = math.b_format;
      math.kernels->gemm(gemm);
    });
  }

  // The sums go to product.c and are rounded after every block except the last; `part`: of the
  // first block.
  void run(const InnerMath<T>& math, int64_t stacks, uint64_t part) const {
    constexpr uint64_t kSumsPerBlock = 3;  // dq, dk and dv
    const int64_t count = stacks / c_group * product.m * product.n;
    T* sum = product.c;
    std::vector<T> addend;
    for (int64_t member = 0; member < c_group; ++member) {
      for (int64_t first = 0; first < product.k; first += block, part += kSumsPerBlock) {
        const bool is_first = member == 0 && first == 0;
        if (!is_first) {
          math.round(sum, count, part);
          addend.resize(static_cast<size_t>(count));
        }
        T* c = is_first ? sum : addend.data();
        multiply(math, stacks, member, first, /*start_from_c=*/false, c);
        math.kernels->scale(c, factor, c, count);
        if (!is_first) math.kernels->add(sum, c, sum, count);
      }
    }
  }
};

}  // namespace

template <typename T>
void blocked_attention_forward(const AttentionForward<T>& args) {
  const InnerMath<T>& math = args.math;
  const AttentionShape& s = args.shape;
  const FlashKernel& kernel = *args.flash;
  const int64_t rows = s.stacks * s.queries, width = s.value_width;
  const int64_t blocks = (s.keys + kernel.key_block - 1) / kernel.key_block;
  T* scores = args.probabilities;
  form_scores(args, scores);

  std::vector<T> e(static_cast<size_t>(s.scores())), sums(static_cast<size_t>(rows));
  std::vector<T> shrink(static_cast<size_t>(rows * blocks));
  parallel_chunks(rows, row_grain(s.keys), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      SoftmaxRow<T> row;
      row.take(math, kernel, scores + r * s.keys, e.data() + r * s.keys, shrink.data() + r * blocks,
               s.keys);
      const bool has_keys = row.max != kMinusInfinity<T>;
      sums[static_cast<size_t>(r)] = has_keys ? row.sum : 1;
      T lse = 0;
      if (has_keys) {
        math.kernels->row.log(&row.sum, &lse, 1);
        lse += row.max;
      }
      T* p = scores + r * s.keys;
      for (int64_t i = 0; i < s.keys; ++i) p[i] -= lse;
      math.kernels->row.exp(p, p, s.keys);
    }
  });

  const Factor<T> weights = weights_of(math, e.data(), args.dropout_mask, args.dropout, s.scores());
  BlockedSum<T> sum{.a_size = s.queries * s.keys,
                    .b_size = s.keys * width,
                    .b_group = s.v_group,
                    .block = kernel.key_block};
  sum.product.m = s.queries, sum.product.n = width, sum.product.k = s.keys;
  sum.product.a = weights.data, sum.product.lda = s.keys;
  sum.product.b = args.v, sum.product.ldb = width;
  sum.product.ldc = width, sum.product.events = args.events;
  const auto scale_rows = [&](auto factor) {
    parallel_chunks(rows, row_grain(width), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        math.kernels->scale(args.y + r * width, factor(r), args.y + r * width, width);
      }
    });
  };
  for (int64_t b = 0; b < blocks; ++b) {
    if (b > 0) scale_rows([&](int64_t r) { return shrink[static_cast<size_t>(r * blocks + b)]; });
    sum.multiply(math, s.stacks, /*member=*/0, b * kernel.key_block, /*start_from_c=*/b > 0,
                 args.y);
  }
  scale_rows([&](int64_t r) { return T(1) / sums[static_cast<size_t>(r)]; });
}

template <typename T>
void blocked_attention_backward(const AttentionBackward<T>& args) {
  const InnerMath<T>& math = args.math;
  const AttentionShape& s = args.shape;
  const FlashKernel& kernel = *args.flash;
  const int64_t rows = s.stacks * s.queries, width = s.value_width;

  std::vector<T> products(static_cast<size_t>(rows * width)), dsum(static_cast<size_t>(rows));
  math.kernels->mul(args.dy, args.y, products.data(), rows * width);
  row_sums(math.kernels->row, products.data(), dsum.data(), rows, width, *math.reduce_accumulator);

  std::vector<T> ds(static_cast<size_t>(s.scores()));
  multiply(args, Product<T>{false, true, args.dy, args.v, s.queries, s.keys, width, ds.data(), 1,
                            s.v_group});
  if (args.dropout_mask != nullptr) {
    math.kernels->masked_scale(ds.data(), args.dropout_mask, dropout_scale<T>(args.dropout),
                               ds.data(), s.scores());
  }
  parallel_chunks(rows, row_grain(s.keys), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t i = r * s.keys; i < (r + 1) * s.keys; ++i) {
        const auto at = static_cast<size_t>(i);
        ds[at] = args.probabilities[i] * (ds[at] - dsum[static_cast<size_t>(r)]);
      }
    }
  });
  math.round(ds.data(), s.scores(), kScoreGradient);
  std::vector<T> storage;
  const T* factor = math.as_factor(ds.data(), s.scores(), storage);
  const Factor<T> weights =
      weights_of(math, args.probabilities, args.dropout_mask, args.dropout, s.scores());

  // dq = scale ds k
  const int64_t scores_size = s.queries * s.keys;
  const T scale = static_cast<T>(args.scale);
  BlockedSum<T> dq{.a_size = scores_size,
                   .b_size = s.keys * s.width,
                   .b_group = s.k_group,
                   .block = kernel.key_block,
                   .factor = scale};
  dq.product.m = s.queries, dq.product.n = s.width, dq.product.k = s.keys;
  dq.product.a = factor, dq.product.lda = s.keys;
  dq.product.b = args.k, dq.product.ldb = s.width;
  dq.product.c = args.dq, dq.product.ldc = s.width;
  dq.run(math, s.stacks, kBlocks);

  // dk = scale ds^T q;  dv = weights^T dy
  const auto sum_over_queries = [&](const T* a, const T* b, int64_t b_width, int64_t group,
                                    T b_factor, T* c, uint64_t part) {
    BlockedSum<T> sum{.a_size = scores_size,
                      .b_size = s.queries * b_width,
                      .c_group = group,
                      .block = kernel.query_block(s.queries),
                      .factor = b_factor};
    sum.product.transpose_a = true;
    sum.product.m = s.keys, sum.product.n = b_width, sum.product.k = s.queries;
    sum.product.a = a, sum.product.lda = s.keys;
    sum.product.b = b, sum.product.ldb = b_width;
    sum.product.c = c, sum.product.ldc = b_width;
    sum.run(math, s.stacks, part);
  };
  sum_over_queries(factor, args.q, s.width, s.k_group, scale, args.dk, kBlocks + 1);
  sum_over_queries(weights.data, args.dy, width, s.v_group, T(1), args.dv, kBlocks + 2);
}

#define LOCKSTEP_INSTANTIATE(T)                                        \
  template void blocked_attention_forward(const AttentionForward<T>&); \
  template void blocked_attention_backward(const AttentionBackward<T>&);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep
