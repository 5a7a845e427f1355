// The loops of row normalisation, one vector at a time; the last vector is masked. The weights'
// gradients are sums down the columns.
#include "emulation/kernels/simd/elements/row_norm.h"

#include "emulation/kernels/scalar/elements/row_norm.h"
#include "emulation/kernels/simd/elements/reduce.h"
#include "emulation/kernels/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "emulation/kernels/simd/elements/row_norm.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "emulation/kernels/simd/elements/column_sums-inl.h"
#include "emulation/kernels/simd/rounding/squares-inl.h"
#include "emulation/kernels/simd/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET

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

template <typename T>
void column_sums(const RowNormBackwardArgs<T>& a, int64_t first, int64_t last) {
  const hn::ScalableTag<T> d;
  const int64_t n = last - first;
  ColumnSums<T> bias(n), weight(n);
  for_rows_in_blocks(
      a.rows,
      [&](int64_t row, int64_t row_of_block) HWY_ATTR {
        const auto m = hn::Set(d, a.centred ? a.mean[row] : T(0)), s = hn::Set(d, a.inv_std[row]);
        const T *x = a.x + row * a.cols + first, *dy = a.dy + row * a.cols + first;
        T *bias_lane = bias.lane(row_of_block), *weight_lane = weight.lane(row_of_block);
        for_vectors<T>(n, [&](auto at, int64_t i) HWY_ATTR {
          const auto gradient = at.load(dy + i);
          const auto x_hat = hn::Mul(hn::Sub(at.load(x + i), m), s);
          at.store(hn::Add(at.load(bias_lane + i), gradient), bias_lane + i);
          at.store(hn::Add(at.load(weight_lane + i), hn::Mul(gradient, x_hat)), weight_lane + i);
        });
      },
      bias, weight);
  if (a.dbias != nullptr) bias.store(a.dbias + first, *a.accumulator);
  if (a.dweight != nullptr) weight.store(a.dweight + first, *a.accumulator);
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
