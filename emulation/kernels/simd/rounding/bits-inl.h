// Operations on single bits of vectors. Included once per target.
#if defined(LOCKSTEP_BITS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_BITS_INL_H
#undef LOCKSTEP_BITS_INL_H
#else
#define LOCKSTEP_BITS_INL_H
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The bits of `yes` where `mask` has ones, of `no` elsewhere. (Highway's IfVecThenElse does this in
// one instruction with AVX-512, but with AVX2 it reads only one bit of every byte.)
template <class V>
HWY_INLINE V select_bits(V mask, V yes, V no) {
#if HWY_TARGET == HWY_AVX2
  return hn::Or(hn::And(mask, yes), hn::AndNot(mask, no));
#else
  return hn::IfVecThenElse(mask, yes, no);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();
#endif  // per-target include guard
