// emulation/kernels/scalar/rounding/squares.h in vectors. Included once per instruction set.
#if defined(LOCKSTEP_SIMD_SQUARES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_SIMD_SQUARES_INL_H_
#undef LOCKSTEP_SIMD_SQUARES_INL_H_
#else
#define LOCKSTEP_SIMD_SQUARES_INL_H_
#endif

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

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();

#endif  // toggle
