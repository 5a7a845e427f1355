// The arithmetic on vectors for emulation/math/functions-inl.h and elementwise_functions-inl.h: the
// same operations as in ScalarMath, so the bits are equal. Included once per instruction set.
#if defined(LOCKSTEP_SIMD_FUNCTIONS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_SIMD_FUNCTIONS_INL_H_
#undef LOCKSTEP_SIMD_FUNCTIONS_INL_H_
#else
#define LOCKSTEP_SIMD_FUNCTIONS_INL_H_
#endif

#include "emulation/kernels/simd/elements/exp_log-inl.h"
#include "emulation/math/elementwise_functions.h"
#include "emulation/math/functions.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET

template <typename Type>
struct VectorMath {
  using T = Type;
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;
  using Mask = hn::Mask<D>;
  static HWY_INLINE V set(double constant) { return hn::Set(D(), static_cast<T>(constant)); }
  static HWY_INLINE Mask lt(V x, V y) { return hn::Lt(x, y); }
  static HWY_INLINE Mask le(V x, V y) { return hn::Le(x, y); }
  static HWY_INLINE Mask eq(V x, V y) { return hn::Eq(x, y); }
  static HWY_INLINE Mask both(Mask a, Mask b) { return hn::And(a, b); }
  static HWY_INLINE V select(Mask condition, V yes, V no) {
    return hn::IfThenElse(condition, yes, no);
  }
  static HWY_INLINE V fma(V x, V y, V z) { return hn::MulAdd(x, y, z); }
  static HWY_INLINE V neg(V x) { return hn::Neg(x); }
  static HWY_INLINE V clamp(V x, V low, V high) {
    const V above = select(lt(x, low), low, x);
    return select(lt(high, above), high, above);
  }
  static HWY_INLINE V abs(V x) { return hn::Abs(x); }
  static HWY_INLINE V sqrt(V x) { return hn::Sqrt(x); }
  static HWY_INLINE V copysign(V x, V sign) { return hn::CopySign(x, sign); }
  static HWY_INLINE V exp(V x) { return vector_exp(D(), x); }
  static HWY_INLINE V log(V x) { return vector_log(D(), x); }
  static HWY_INLINE V tanh(V x) { return vector_tanh(D(), x); }
  static V pow(V x, V y) {  // number by number
    HWY_ALIGN T bases[hn::MaxLanes(D())];
    HWY_ALIGN T exponents[hn::MaxLanes(D())];
    hn::Store(x, D(), bases);
    hn::Store(y, D(), exponents);
    for (size_t i = 0; i < hn::Lanes(D()); ++i) bases[i] = lockstep_pow(bases[i], exponents[i]);
    return hn::Load(D(), bases);
  }
  static HWY_INLINE V two_sum_error(V x, V y, V sum) {
    return HWY_NAMESPACE::two_sum_error(x, y, sum);
  }
  static HWY_INLINE V power_of_two(V n) { return vector_power_of_two(D(), n); }
  static HWY_INLINE void reduce_exp(V x, V& n, V& r, V& tail) {
    const auto reduced = vector_reduce_exp(D(), x);
    n = reduced.n;
    r = reduced.r;
    tail = reduced.tail;
  }
};

#include "emulation/math/functions-inl.h"

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();
#endif
