// Array loops over the vector functions; the last, partial vector is masked.
#include "emulation/kernels/simd/elements/exp_log.h"

#include "emulation/kernels/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "emulation/kernels/simd/elements/exp_log.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "emulation/kernels/simd/elements/exp_log-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET

template <typename T, class Function>
HWY_INLINE void apply(const T* x, T* y, int64_t count, Function function) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(function(d, hn::LoadU(d, x + i)), d, y + i);
  if (i == count) return;
  const auto mask = hn::FirstN(d, static_cast<size_t>(count - i));
  hn::BlendedStore(function(d, hn::MaskedLoad(mask, d, x + i)), mask, d, y + i);
}

#define LOCKSTEP_ARRAY_FUNCTION(NAME, T)                                             \
  void array_##NAME(const T* x, T* y, int64_t count) {                               \
    apply(x, y, count, [](auto d, auto v) HWY_ATTR { return vector_##NAME(d, v); }); \
  }
LOCKSTEP_ARRAY_FUNCTION(exp, float)
LOCKSTEP_ARRAY_FUNCTION(exp, double)
LOCKSTEP_ARRAY_FUNCTION(log, float)
LOCKSTEP_ARRAY_FUNCTION(log, double)
LOCKSTEP_ARRAY_FUNCTION(tanh, float)
LOCKSTEP_ARRAY_FUNCTION(tanh, double)
#undef LOCKSTEP_ARRAY_FUNCTION

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep {

#define LOCKSTEP_EXPORT(NAME, T)                        \
  void avx2_##NAME(const T* x, T* y, int64_t count) {   \
    N_AVX2::array_##NAME(x, y, count);                  \
  }                                                     \
  void avx512_##NAME(const T* x, T* y, int64_t count) { \
    N_AVX3::array_##NAME(x, y, count);                  \
  }
LOCKSTEP_EXPORT(exp, float)
LOCKSTEP_EXPORT(exp, double)
LOCKSTEP_EXPORT(log, float)
LOCKSTEP_EXPORT(log, double)
LOCKSTEP_EXPORT(tanh, float)
LOCKSTEP_EXPORT(tanh, double)
#undef LOCKSTEP_EXPORT

}  // namespace lockstep
#endif  // HWY_ONCE
