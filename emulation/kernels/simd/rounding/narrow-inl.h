// Sums in float lanes rounded once to a format narrower than float: first to odd in 24 bits, then
// to nearest even in p <= 22. Arm's sums end with the 24 bits. Included once per instruction set.
//
//   round to odd   AVX-512: of the sums rounded down and up take the one with an odd last bit
//                  AVX2: TwoSum, then the last bit set wherever its error is nonzero
// Source: S. Boldo, G. Melquiond, IEEE Transactions on Computers 57(4), 2008.
#if defined(LOCKSTEP_NARROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_NARROW_INL_H_
#undef LOCKSTEP_NARROW_INL_H_
#else
#define LOCKSTEP_NARROW_INL_H_
#endif

#include <hwy/highway.h>

#include <cmath>
#include <limits>

#include "emulation/format/format.h"
#include "emulation/kernels/simd/targets.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET
namespace hn = hwy::HWY_NAMESPACE;

// The one NaN of every kernel (emulation/accumulator/fast_round.h).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V canonical(D d, V x) {
  return hn::IfThenElse(hn::IsNaN(x), hn::Set(d, std::numeric_limits<hn::TFromD<D>>::quiet_NaN()),
                        x);
}

using FloatTag = hn::ScalableTag<float>;
using FloatVec = hn::Vec<FloatTag>;
using DoubleTag = hn::ScalableTag<double>;
using DoubleVec = hn::Vec<DoubleTag>;

// sum is rounded to nearest, and error is the rounding error; the result is their exact total
// rounded to odd. An infinite or NaN sum (its error is NaN) is unchanged.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V to_odd(D d, V sum, V error) {
  const hn::RebindToSigned<D> di;
  constexpr int kSignBit = sizeof(hn::TFromD<D>) * 8 - 1;
  const auto bits = hn::BitCast(di, sum);
  // -1 where the signs differ: |sum| is above the exact sum's magnitude.
  const auto step_back = hn::ShiftRight<kSignBit>(hn::BitCast(di, hn::Xor(error, sum)));
  const auto odd = hn::Or(hn::Add(bits, step_back), hn::Set(di, 1));
  return hn::IfThenElse(hn::Ne(error, hn::Zero(d)), hn::BitCast(d, odd), sum);
}

template <class V>
HWY_INLINE V two_sum_error(V x, V y, V sum) {
  const V from_y = hn::Sub(sum, x);
  return hn::Add(hn::Sub(x, hn::Sub(sum, from_y)), hn::Sub(y, from_y));
}

// a * b + acc rounded to odd in float. AVX2 requires: products exact in float, see
// NarrowTile::is_fast.
HWY_INLINE FloatVec multiply_add_to_odd(FloatTag d, FloatVec a, FloatVec b, FloatVec acc) {
#if HWY_TARGET == HWY_AVX3
  // Highway has no directed rounding. The two sums are equal if exact, otherwise neighbours. An
  // exact zero is -0 downwards and +0 upwards: its last bit is even, so the upward one is chosen.
  const FloatVec down{
      _mm512_fmadd_round_ps(a.raw, b.raw, acc.raw, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
  const FloatVec up{
      _mm512_fmadd_round_ps(a.raw, b.raw, acc.raw, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC)};
  const hn::RebindToSigned<FloatTag> di;
  const auto down_is_odd = hn::TestBit(hn::BitCast(di, down), hn::Set(di, 1));
  return hn::IfThenElse(hn::RebindMask(d, down_is_odd), down, up);
#else
  const FloatVec product = hn::Mul(a, b);
  const FloatVec sum = hn::Add(acc, product);
  return to_odd(d, sum, two_sum_error(acc, product, sum));
#endif
}

// x + acc rounded to odd in float. An overflow gives infinity or the largest float; in narrower
// formats both round to the same result.
HWY_INLINE FloatVec add_to_odd(FloatTag d, FloatVec x, FloatVec acc) {
#if HWY_TARGET == HWY_AVX3
  const FloatVec one = hn::Set(d, 1.0f);
  return multiply_add_to_odd(d, x, one, acc);
#else
  const FloatVec sum = hn::Add(acc, x);
  return to_odd(d, sum, two_sum_error(acc, x, sum));
#endif
}

// Float to FP16 values by the conversion instructions: nearest even, subnormals, overflow, NaN.
struct ToFp16 {
  HWY_INLINE FloatVec operator()(FloatTag d, FloatVec x) const {
    const hn::Rebind<hwy::float16_t, FloatTag> d16;
    return hn::PromoteTo(d, hn::DemoteTo(d16, x));
  }
};

// Float to BF16 values by integers: adds half a unit, less one where the last kept bit is even.
// Carries run into the exponent, up to infinity. Requires: a NaN has no low payload (see facts_of).
struct ToBf16 {
  HWY_INLINE FloatVec operator()(FloatTag d, FloatVec x) const {
    const hn::RebindToUnsigned<FloatTag> du;
    const auto bits = hn::BitCast(du, x);
    const auto last = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const auto rounded = hn::Add(hn::Add(bits, hn::Set(du, 0x7fff)), last);
    return hn::BitCast(d, hn::And(rounded, hn::Set(du, 0xffff0000)));
  }
};

// Double to any IEEE-like format by the magic addition of emulation/accumulator/fast_round.h.
struct DoubleRound {
  double min_normal, max_finite, magic_factor;
  explicit DoubleRound(const Format& f)
      : min_normal(f.min_normal()),
        max_finite(f.max_finite),
        magic_factor(1.5 * std::ldexp(1.0, 53 - f.precision)) {}
  HWY_INLINE DoubleVec operator()(DoubleTag d, DoubleVec x) const {
    const hn::RebindToUnsigned<DoubleTag> du;
    const auto infinity = hn::Set(d, std::numeric_limits<double>::infinity());
    const auto binade =
        hn::BitCast(d, hn::And(hn::BitCast(du, x), hn::Set(du, uint64_t{0x7ff0000000000000})));
    const auto magic = hn::Mul(hn::Max(binade, hn::Set(d, min_normal)), hn::Set(d, magic_factor));
    const auto rounded = hn::Abs(hn::Sub(hn::Add(x, magic), magic));
    // False for overflow and for the NaN from an infinite x.
    const auto fits = hn::Le(rounded, hn::Set(d, max_finite));
    const auto value = hn::CopySign(hn::IfThenElse(fits, rounded, infinity), x);
    return hn::IfThenElse(hn::IsNaN(x), x, value);
  }
};

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();
#endif
