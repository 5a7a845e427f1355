// One vector at a time, the last one masked; ranges are spread over the threads.
#include "emulation/kernels/simd/elements/elementwise.h"

#include <algorithm>

#include "emulation/kernels/simd/targets.h"
#include "src/core/chunks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "emulation/kernels/simd/elements/elementwise.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "emulation/kernels/simd/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET

template <typename T>
void add(const T* a, const T* b, T* y, int64_t count) {
  map_vectors(a, b, y, count, [](auto u, auto v) HWY_ATTR { return hn::Add(u, v); });
}

template <typename T>
void mul(const T* a, const T* b, T* y, int64_t count) {
  map_vectors(a, b, y, count, [](auto u, auto v) HWY_ATTR { return hn::Mul(u, v); });
}

template <typename T>
void scale(const T* x, T factor, T* y, int64_t count) {
  const auto f = hn::Set(hn::ScalableTag<T>(), factor);
  map_vectors(x, x, y, count, [&](auto u, auto) HWY_ATTR { return hn::Mul(u, f); });
}

template <typename T>
void divide(const T* x, T divisor, T* y, int64_t count) {
  const auto by = hn::Set(hn::ScalableTag<T>(), divisor);
  map_vectors(x, x, y, count, [&](auto u, auto) HWY_ATTR { return hn::Div(u, by); });
}

// y = x + term
template <typename T>
void shift(const T* x, T term, T* y, int64_t count) {
  const auto t = hn::Set(hn::ScalableTag<T>(), term);
  map_vectors(x, x, y, count, [&](auto u, auto) HWY_ATTR { return hn::Add(u, t); });
}

// v where u > 0 or u is NaN, else +0: relu for u = v.
template <typename T>
void gate(const T* x, const T* v, T* y, int64_t count) {
  const auto zero = hn::Zero(hn::ScalableTag<T>());
  map_vectors(x, v, y, count,
              [&](auto u, auto w) HWY_ATTR { return hn::IfThenZeroElse(hn::Le(u, zero), w); });
}

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep {
namespace {

// A two-operand kernel spread over the threads.
template <typename T, void (*kKernel)(const T*, const T*, T*, int64_t)>
void spread(const T* a, const T* b, T* y, int64_t count) {
  parallel_chunks(count, kElementGrain, [=](int64_t begin, int64_t end) {
    kKernel(a + begin, b + begin, y + begin, end - begin);
  });
}
template <typename T, void (*kKernel)(const T*, T, T*, int64_t)>
void spread_by_number(const T* x, T number, T* y, int64_t count) {
  parallel_chunks(count, kElementGrain, [=](int64_t begin, int64_t end) {
    kKernel(x + begin, number, y + begin, end - begin);
  });
}
template <typename T, void (*kKernel)(const T*, const T*, T*, int64_t)>
void spread_relu(const T* x, T* y, int64_t count) {
  spread<T, kKernel>(x, x, y, count);
}

// Planes of one element are rows of channels.
template <typename T, void (*kAdd)(const T*, const T*, T*, int64_t),
          void (*kShift)(const T*, T, T*, int64_t)>
void add_channels(T* y, const T* b, int64_t batch, int64_t channels, int64_t plane) {
  if (plane == 1) {
    parallel_chunks(batch, row_grain(channels), [=](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) kAdd(y + n * channels, b, y + n * channels, channels);
    });
    return;
  }
  parallel_chunks(batch * channels, row_grain(plane), [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      kShift(y + row * plane, b[row % channels], y + row * plane, plane);
    }
  });
}

template <typename T>
using Loop = void (*)(const T*, const T*, T*, int64_t);
template <typename T>
using NumberLoop = void (*)(const T*, T, T*, int64_t);

template <typename T, Loop<T> kAdd, Loop<T> kMul, NumberLoop<T> kScale, NumberLoop<T> kDivide,
          NumberLoop<T> kShift, Loop<T> kGate>
void use_loops(Kernels<T>& kernels) {
  kernels.add = spread<T, kAdd>;
  kernels.mul = spread<T, kMul>;
  kernels.scale = spread_by_number<T, kScale>;
  kernels.divide = spread_by_number<T, kDivide>;
  kernels.add_channels = add_channels<T, kAdd, kShift>;
  kernels.relu = spread_relu<T, kGate>;
  kernels.relu_backward = spread<T, kGate>;
}

}  // namespace

void use_simd_elementwise(KernelSet& set, SimdTarget target) {
  if (target == SimdTarget::kAvx2) {
    using namespace N_AVX2;
    use_loops<float, add<float>, mul<float>, scale<float>, divide<float>, shift<float>,
              gate<float>>(set.f32);
    use_loops<double, add<double>, mul<double>, scale<double>, divide<double>, shift<double>,
              gate<double>>(set.f64);
  } else {
    using namespace N_AVX3;
    use_loops<float, add<float>, mul<float>, scale<float>, divide<float>, shift<float>,
              gate<float>>(set.f32);
    use_loops<double, add<double>, mul<double>, scale<double>, divide<double>, shift<double>,
              gate<double>>(set.f64);
  }
}

}  // namespace lockstep
#endif  // HWY_ONCE
