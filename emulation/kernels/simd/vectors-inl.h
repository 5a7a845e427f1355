// Walks over arrays one vector at a time; the last, partial vector is masked. Included once per
// instruction set.
#if defined(LOCKSTEP_SIMD_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_SIMD_VECTORS_INL_H_
#undef LOCKSTEP_SIMD_VECTORS_INL_H_
#else
#define LOCKSTEP_SIMD_VECTORS_INL_H_
#endif

#include "emulation/kernels/simd/rounding/narrow-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET

// How a place in an array is read and written: as a whole vector, or its first lanes.
template <class D>
struct Whole {
  using T = hn::TFromD<D>;
  HWY_INLINE hn::Vec<D> load(const T* from) const { return hn::LoadU(D(), from); }
  HWY_INLINE void store(hn::Vec<D> v, T* to) const { hn::StoreU(v, D(), to); }
};
template <class D>
struct Part {
  using T = hn::TFromD<D>;
  hn::Mask<D> mask;
  HWY_INLINE hn::Vec<D> load(const T* from) const { return hn::MaskedLoad(mask, D(), from); }
  HWY_INLINE void store(hn::Vec<D> v, T* to) const { hn::BlendedStore(v, mask, D(), to); }
};

// body(place, index) for every vector of [0, count).
template <typename T, class Body>
HWY_INLINE void for_vectors(int64_t count, Body body) {
  using D = hn::ScalableTag<T>;
  const D d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) body(Whole<D>{}, i);
  if (i < count) body(Part<D>{hn::FirstN(d, static_cast<size_t>(count - i))}, i);
}

// y = canonical NaN or function(a, b), vector by vector; y may be a or b.
template <typename T, class Function>
HWY_INLINE void map_vectors(const T* a, const T* b, T* y, int64_t count, Function function) {
  const hn::ScalableTag<T> d;
  for_vectors<T>(count, [&](auto at, int64_t i) HWY_ATTR {
    at.store(canonical(d, function(at.load(a + i), at.load(b + i))), y + i);
  });
}

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();

#endif  // toggle
