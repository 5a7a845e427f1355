// The loops of batch normalisation, one vector at a time; the last vector is masked.
#include "emulation/kernels/simd/elements/batch_norm.h"

#include "emulation/kernels/scalar/elements/batch_norm.h"
#include "emulation/kernels/simd/elements/reduce.h"
#include "emulation/kernels/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "emulation/kernels/simd/elements/batch_norm.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "emulation/kernels/simd/rounding/squares-inl.h"
#include "emulation/kernels/simd/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET

template <typename T>
void normalise(const T* x, T mean, T inv_std, T w, T b, T* y, int64_t count) {
  const hn::ScalableTag<T> d;
  const auto m = hn::Set(d, mean), s = hn::Set(d, inv_std);
  const auto weight = hn::Set(d, w), bias = hn::Set(d, b);
  for_vectors<T>(count, [&](auto at, int64_t i) HWY_ATTR {
    const auto x_hat = hn::Mul(hn::Sub(at.load(x + i), m), s);
    at.store(canonical(d, hn::Add(hn::Mul(x_hat, weight), bias)), y + i);
  });
}

template <typename T>
void scale_and_add(const T* x, T factor, T rest, T* y, int64_t count) {
  const hn::ScalableTag<T> d;
  const auto f = hn::Set(d, factor), r = hn::Set(d, rest);
  for_vectors<T>(count, [&](auto at, int64_t i) HWY_ATTR {
    at.store(canonical(d, hn::MulAdd(at.load(x + i), f, r)), y + i);
  });
}

template <typename T>
void weight_terms(const T* x, const T* dy, T mean, T inv_std, T* out, int64_t count) {
  const hn::ScalableTag<T> d;
  const auto m = hn::Set(d, mean), s = hn::Set(d, inv_std);
  for_vectors<T>(count, [&](auto at, int64_t i) HWY_ATTR {
    const auto x_hat = hn::Mul(hn::Sub(at.load(x + i), m), s);
    at.store(hn::Mul(at.load(dy + i), x_hat), out + i);
  });
}

template <typename T>
void input_gradient(const T* x, const T* dy, T mean, T inv_std, T factor, T n, T sum_dy,
                    T sum_dy_x_hat, T* dx, int64_t count) {
  const hn::ScalableTag<T> d;
  const auto m = hn::Set(d, mean), s = hn::Set(d, inv_std), f = hn::Set(d, factor);
  const auto all = hn::Set(d, n), first = hn::Set(d, sum_dy), second = hn::Set(d, sum_dy_x_hat);
  for_vectors<T>(count, [&](auto at, int64_t i) HWY_ATTR {
    const auto x_hat = hn::Mul(hn::Sub(at.load(x + i), m), s);
    const auto centred = hn::Sub(hn::Mul(all, at.load(dy + i)), first);
    at.store(canonical(d, hn::Mul(f, hn::Sub(centred, hn::Mul(x_hat, second)))), dx + i);
  });
}

template <typename T>
constexpr BatchNormLoops<T> make_loops(BlockSum<T> block_sum) {
  return {block_sum,        squares<T>,      normalise<T>,
          scale_and_add<T>, weight_terms<T>, input_gradient<T>};
}
constexpr BatchNormLoops<float> kFloatLoops =
    make_loops<float>(HWY_TARGET == HWY_AVX2 ? avx2_block_sum : avx512_block_sum);
constexpr BatchNormLoops<double> kDoubleLoops = make_loops<double>(scalar_block_sum<double>);

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep {
namespace {

template <typename T, const BatchNormLoops<T>* kLoops>
void use_loops(Kernels<T>& kernels) {
  kernels.batch_norm = [](const BatchNormArgs<T>& a) { batch_norm_with(*kLoops, a); };
  kernels.batch_norm_backward = [](const BatchNormBackwardArgs<T>& a) {
    batch_norm_backward_with(*kLoops, a);
  };
}

}  // namespace

void use_simd_batch_norm(KernelSet& set, SimdTarget target) {
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
