// The loops of row normalisation, one vector at a time; the last vector is masked. The weights'
// gradients are sums down the columns: a vector holds neighbouring columns, and the 16 virtual
// lanes of emulation/kernels/reduction.h are 16 rows of vectors.
#include "emulation/kernels/simd/row_norm.h"

#include <algorithm>
#include <vector>

#include "emulation/accumulator/fast_round.h"
#include "emulation/kernels/reduction.h"
#include "emulation/kernels/scalar/row_norm.h"
#include "emulation/kernels/simd/reduce.h"
#include "emulation/kernels/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "emulation/kernels/simd/row_norm.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "emulation/kernels/simd/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET

template <typename T>
void squares(const T* x, T mean, T* out, int64_t count) {
  const hn::ScalableTag<T> d;
  const auto m = hn::Set(d, mean);
  for_vectors<T>(count, [&](auto at, int64_t i) HWY_ATTR {
    const auto centred = hn::Sub(at.load(x + i), m);
    at.store(hn::Mul(centred, centred), out + i);
  });
}

template <typename T>
void normalise(const T* x, T mean, T inv_std, const T* w, const T* b, T* y, int64_t count) {
  const hn::ScalableTag<T> d;
  const auto m = hn::Set(d, mean), s = hn::Set(d, inv_std);
  for_vectors<T>(count, [&](auto at, int64_t i) HWY_ATTR {
    const auto x_hat = hn::Mul(hn::Sub(at.load(x + i), m), s);
    at.store(canonical(d, hn::Add(hn::Mul(x_hat, at.load(w + i)), at.load(b + i))), y + i);
  });
}

template <typename T>
void terms(const T* x, const T* dy, T mean, T inv_std, const T* w, T* g, T* g_x_hat,
           int64_t count) {
  const hn::ScalableTag<T> d;
  const auto m = hn::Set(d, mean), s = hn::Set(d, inv_std);
  for_vectors<T>(count, [&](auto at, int64_t i) HWY_ATTR {
    const auto product = hn::Mul(at.load(dy + i), at.load(w + i));
    const auto x_hat = hn::Mul(hn::Sub(at.load(x + i), m), s);
    at.store(product, g + i);
    at.store(hn::Mul(product, x_hat), g_x_hat + i);
  });
}

template <typename T>
void input_gradient(const T* x, const T* g, T mean, T inv_std, T sum_g, T sum_g_x_hat, T* dx,
                    int64_t count) {
  const hn::ScalableTag<T> d;
  const auto m = hn::Set(d, mean), s = hn::Set(d, inv_std);
  const auto n = hn::Set(d, static_cast<T>(count));
  const auto factor = hn::Set(d, inv_std / static_cast<T>(count));
  const auto first = hn::Set(d, sum_g), second = hn::Set(d, sum_g_x_hat);
  for_vectors<T>(count, [&](auto at, int64_t i) HWY_ATTR {
    const auto x_hat = hn::Mul(hn::Sub(at.load(x + i), m), s);
    const auto centred = hn::Sub(hn::Mul(n, at.load(g + i)), first);
    at.store(canonical(d, hn::Mul(factor, hn::Sub(centred, hn::Mul(x_hat, second)))), dx + i);
  });
}

// Adds rows [begin, end) of columns [first, first + n) to their virtual lanes, bias then weight.
template <typename T>
HWY_NOINLINE void add_rows(const RowNormBackwardArgs<T>& a, int64_t begin, int64_t end,
                           int64_t first, int64_t n, T* bias_lanes, T* weight_lanes) {
  const hn::ScalableTag<T> d;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t lane = (row - begin) % kReductionLanes * n, at_row = row * a.cols + first;
    const auto m = hn::Set(d, a.centred ? a.mean[row] : T(0)), s = hn::Set(d, a.inv_std[row]);
    const T *x = a.x + at_row, *dy = a.dy + at_row;
    T *bias = bias_lanes + lane, *weight = weight_lanes + lane;
    for_vectors<T>(n, [&](auto at, int64_t i) HWY_ATTR {
      const auto gradient = at.load(dy + i);
      const auto x_hat = hn::Mul(hn::Sub(at.load(x + i), m), s);
      at.store(hn::Add(at.load(bias + i), gradient), bias + i);
      at.store(hn::Add(at.load(weight + i), hn::Mul(gradient, x_hat)), weight + i);
    });
  }
}

// The lanes (16, n) joined pairwise into their first row.
template <typename T>
HWY_NOINLINE void join_lanes(T* lanes, int64_t n) {
  for (int64_t half = kReductionLanes / 2; half > 0; half /= 2) {
    for_vectors<T>(half * n, [&](auto at, int64_t i) HWY_ATTR {
      at.store(hn::Add(at.load(lanes + i), at.load(lanes + half * n + i)), lanes + i);
    });
  }
}

template <typename T>
void column_sums(const RowNormBackwardArgs<T>& a, int64_t first, int64_t last) {
  const int64_t n = last - first, lanes = kReductionLanes * n;
  const int64_t blocks = (a.rows + kReductionBlock - 1) / kReductionBlock;
  std::vector<T> sums(static_cast<size_t>(2 * lanes));
  T *bias = sums.data(), *weight = bias + lanes;
  std::vector<std::vector<double>> bias_blocks(static_cast<size_t>(n)), weight_blocks(bias_blocks);
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t begin = block * kReductionBlock;
    std::fill(sums.begin(), sums.end(), T(0));
    add_rows(a, begin, std::min(a.rows, begin + kReductionBlock), first, n, bias, weight);
    join_lanes(bias, n);
    join_lanes(weight, n);
    for (int64_t i = 0; i < n; ++i) {
      bias_blocks[static_cast<size_t>(i)].push_back(canonical_nan(bias[i]));
      weight_blocks[static_cast<size_t>(i)].push_back(canonical_nan(weight[i]));
    }
  }
  const auto store = [&](T* out, std::vector<std::vector<double>>& parts) {
    for (int64_t i = 0; out != nullptr && i < n; ++i) {
      out[first + i] =
          static_cast<T>(join_block_sums(std::move(parts[static_cast<size_t>(i)]), *a.accumulator));
    }
  };
  store(a.dbias, bias_blocks);
  store(a.dweight, weight_blocks);
}

template <typename T>
constexpr RowNormLoops<T> make_loops(BlockSum<T> block_sum) {
  return {block_sum, squares<T>, normalise<T>, terms<T>, input_gradient<T>, column_sums<T>};
}
constexpr RowNormLoops<float> kFloatLoops =
    make_loops<float>(HWY_TARGET == HWY_AVX2 ? avx2_block_sum : avx512_block_sum);
constexpr RowNormLoops<double> kDoubleLoops = make_loops<double>(scalar_block_sum<double>);

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep {
namespace {

template <typename T, const RowNormLoops<T>* kLoops>
void use_loops(Kernels<T>& kernels) {
  kernels.row_norm = [](const RowNormArgs<T>& a) { row_norm_with(*kLoops, a); };
  kernels.row_norm_backward = [](const RowNormBackwardArgs<T>& a) {
    row_norm_backward_with(*kLoops, a);
  };
}

}  // namespace

void use_simd_row_norm(KernelSet& set, SimdTarget target) {
  if (target == SimdTarget::kAvx2) {
    use_loops<float, &N_AVX2::kFloatLoops>(set.f32);
    use_loops<double, &N_AVX2::kDoubleLoops>(set.f64);
  } else {
    use_loops<float, &N_AVX3::kFloatLoops>(set.f32);
    use_loops<double, &N_AVX3::kDoubleLoops>(set.f64);
  }
}

}  // namespace lockstep
#endif  // HWY_ONCE
