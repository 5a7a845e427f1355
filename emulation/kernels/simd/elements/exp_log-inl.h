// exp, log and tanh on vectors: the same operations as in emulation/math/exp_log.h, so the bits are
// equal. Included once per instruction set.
#if defined(LOCKSTEP_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_MATH_INL_H_
#undef LOCKSTEP_MATH_INL_H_
#else
#define LOCKSTEP_MATH_INL_H_
#endif

#include <hwy/highway.h>

#include <limits>

#include "emulation/kernels/simd/rounding/narrow-inl.h"
#include "emulation/kernels/simd/targets.h"
#include "emulation/math/exp_log.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET
namespace hn = hwy::HWY_NAMESPACE;

// 2^n for an integral n with a normal exponent.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V vector_power_of_two(D d, V n) {
  using C = MathConstants<hn::TFromD<D>>;
  using Int = typename C::Int;
  const hn::RebindToSigned<D> di;
  // n is small: n + bias + 2^fraction bits holds the exponent field in its low bits.
  const V shifted = hn::Add(n, hn::Set(d, C::kRoundToInteger));
  const Int zero = std::bit_cast<Int>(C::kRoundToInteger);
  const auto whole = hn::Sub(hn::BitCast(di, shifted), hn::Set(di, zero));
  const auto field = hn::Add(whole, hn::Set(di, static_cast<Int>(C::kBias)));
  return hn::BitCast(d, hn::ShiftLeft<C::kFractionBits>(field));
}

template <class V>
struct VectorReducedExp {
  V n, r, tail;
};
template <class D, class V = hn::Vec<D>>
HWY_INLINE VectorReducedExp<V> vector_reduce_exp(D d, V x) {
  using C = MathConstants<hn::TFromD<D>>;
  const V shift = hn::Set(d, C::kRoundToInteger);
  const V n = hn::Sub(hn::MulAdd(x, hn::Set(d, C::kLog2E), shift), shift);
  const V high = hn::NegMulAdd(n, hn::Set(d, C::kLn2High), x);
  const V low = hn::Mul(n, hn::Set(d, C::kLn2Low));
  const V r = hn::Sub(high, low);
  const V r_error = hn::Sub(hn::Sub(high, r), low);
  V q = hn::Set(d, C::kInverseFactorial[C::kExpTerms]);
  for (int i = C::kExpTerms - 1; i >= 2; --i) {
    q = hn::MulAdd(q, r, hn::Set(d, C::kInverseFactorial[static_cast<size_t>(i)]));
  }
  return {n, r, hn::MulAdd(hn::Mul(r, r), q, r_error)};
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V vector_exp(D d, V x) {
  using T = hn::TFromD<D>;
  using C = MathConstants<T>;
  const auto reduced = vector_reduce_exp(d, x);
  const V y = hn::Add(hn::Set(d, T(1)), hn::Add(reduced.r, reduced.tail));
  // floor(n / 2), like the arithmetic shift in the scalar code.
  const V half = hn::Floor(hn::Mul(reduced.n, hn::Set(d, T(0.5))));
  const V other = hn::Sub(reduced.n, half);
  V result = hn::Mul(hn::Mul(y, vector_power_of_two(d, half)), vector_power_of_two(d, other));
  result = hn::IfThenElse(hn::Gt(x, hn::Set(d, C::kExpMax)),
                          hn::Set(d, std::numeric_limits<T>::infinity()), result);
  result = hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, C::kExpMin)), result);
  return hn::IfThenElse(hn::IsNaN(x), hn::Set(d, std::numeric_limits<T>::quiet_NaN()), result);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V vector_log(D d, V x) {
  using T = hn::TFromD<D>;
  using C = MathConstants<T>;
  using Bits = typename C::Bits;
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const V one = hn::Set(d, T(1));
  const auto subnormal = hn::Lt(x, hn::Set(d, std::numeric_limits<T>::min()));
  const T up =
      std::bit_cast<T>(static_cast<Bits>(C::kFractionBits + 1 + C::kBias) << C::kFractionBits);
  const V scaled = hn::IfThenElse(subnormal, hn::Mul(x, hn::Set(d, up)), x);
  const auto offset =
      hn::BitCast(du, hn::Set(d, C::kIsFloat ? T(0x1.6a09e8p-1) : T(0x1.6a09e667f3bcdp-1)));
  const auto shifted = hn::Sub(hn::BitCast(du, scaled), offset);
  // The shifted exponent as a number: an integer below 2^11 placed into the last bits of a large
  // one.
  const auto exponent = hn::ShiftRight<C::kFractionBits>(hn::BitCast(di, shifted));
  const V large = hn::Set(d, C::kRoundToInteger);
  V k = hn::Sub(hn::BitCast(d, hn::Add(hn::BitCast(di, large), exponent)), large);
  k = hn::Sub(k, hn::IfThenElseZero(subnormal, hn::Set(d, T(C::kFractionBits + 1))));
  const auto fraction_mask = hn::Set(du, static_cast<Bits>((Bits(1) << C::kFractionBits) - 1));
  const V f = hn::Sub(hn::BitCast(d, hn::Add(hn::And(shifted, fraction_mask), offset)), one);
  const V s = hn::Div(f, hn::Add(hn::Set(d, T(2)), f));
  const V z = hn::Mul(s, s);
  V series = hn::Set(d, C::kTwoOverOdd[C::kLogTerms]);
  for (int i = C::kLogTerms - 1; i >= 1; --i) {
    series = hn::MulAdd(series, z, hn::Set(d, C::kTwoOverOdd[static_cast<size_t>(i)]));
  }
  const V half_square = hn::Mul(hn::Mul(hn::Set(d, T(0.5)), f), f);
  const V tail =
      hn::MulAdd(s, hn::Add(half_square, hn::Mul(z, series)), hn::Mul(k, hn::Set(d, C::kLn2Low)));
  V result = hn::Add(hn::Mul(k, hn::Set(d, C::kLn2High)), hn::Sub(f, hn::Sub(half_square, tail)));
  const V infinity = hn::Set(d, std::numeric_limits<T>::infinity());
  result = hn::IfThenElse(hn::Eq(x, infinity), infinity, result);
  result = hn::IfThenElse(hn::Gt(x, hn::Zero(d)), result,
                          hn::Set(d, std::numeric_limits<T>::quiet_NaN()));
  return hn::IfThenElse(hn::Eq(x, hn::Zero(d)), hn::Neg(infinity), result);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V vector_tanh(D d, V x) {
  using T = hn::TFromD<D>;
  using C = MathConstants<T>;
  const V one = hn::Set(d, T(1)), magnitude = hn::Abs(x);
  const auto reduced = vector_reduce_exp(d, hn::Add(magnitude, magnitude));
  const V scale = vector_power_of_two(d, reduced.n);
  const V base = hn::Sub(scale, one), scaled = hn::Mul(scale, reduced.r);
  const V sum = hn::Add(base, scaled);
  const V rest = hn::Add(two_sum_error(base, scaled, sum), hn::Mul(scale, reduced.tail));
  const V t = hn::Add(sum, rest);
  const V t_low = two_sum_error(sum, rest, t);
  const V two = hn::Set(d, T(2)), below = hn::Add(t, two);
  const V below_low = hn::Add(two_sum_error(t, two, below), t_low);
  const V quotient = hn::Div(t, below);
  const V remainder =
      hn::Add(hn::NegMulAdd(quotient, below, t), hn::NegMulAdd(quotient, below_low, t_low));
  V result = hn::Add(quotient, hn::Div(remainder, below));
  result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d, C::kTanhOne)), one, result);
  return hn::IfThenElse(hn::IsNaN(x), hn::Set(d, std::numeric_limits<T>::quiet_NaN()),
                        hn::CopySign(result, x));
}

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();
#endif
