// x^y with the same bits on every machine, and C's special values (IEEE 754-2019, 9.2.1).
//   float    exp(y log x) in double
//   double   log x and y log x as sums of two doubles, so that their error, up to 745 times larger
//            in the result, stays below 2^-56
// Error (tested): within 1 ulp.
#pragma once

#include "emulation/math/exp_log.h"

namespace lockstep {
namespace math_detail {

// high + low, |low| <= ulp(high) / 2.
struct TwoDoubles {
  double high, low;
};
inline TwoDoubles fast_two_sum(double x, double y) {  // |x| >= |y|
  const double sum = x + y;
  return {sum, y - (sum - x)};
}
inline TwoDoubles add(double c, TwoDoubles x) {  // |c| >= |x|
  const TwoDoubles sum = fast_two_sum(c, x.high);
  return fast_two_sum(sum.high, sum.low + x.low);
}
inline TwoDoubles multiply(TwoDoubles x, TwoDoubles y) {
  const double product = x.high * y.high;
  const double error = std::fma(x.high, y.high, -product);
  return fast_two_sum(product, error + (x.high * y.low + x.low * y.high));
}
// 2 / n to 106 bits.
inline TwoDoubles two_over(double n) {
  const double quotient = 2 / n;
  return {quotient, std::fma(-quotient, n, 2.0) / n};
}

// log x of a positive, finite x: k ln2 + s (2 + 2/3 z + 2/5 z^2 + z^3 R), s = f / (2 + f), z = s^2.
// R is a double: z^3 <= 2^-15, so its rounding error is below 2^-68 of the whole.
inline TwoDoubles log_in_two(double x) {
  using C = MathConstants<double>;
  constexpr int kTerms = 15;  // z^15 / 31 < 2^-81
  const bool subnormal = x < std::numeric_limits<double>::min();
  const double scaled = subnormal ? x * power_of_two<double>(C::kFractionBits + 1) : x;
  const uint64_t offset = std::bit_cast<uint64_t>(0x1.6a09e667f3bcdp-1);
  const uint64_t shifted = std::bit_cast<uint64_t>(scaled) - offset;
  const double k = static_cast<double>(static_cast<int64_t>(shifted) >> C::kFractionBits) -
                   (subnormal ? C::kFractionBits + 1 : 0);
  const uint64_t fraction_mask = (uint64_t{1} << C::kFractionBits) - 1;
  const double f = std::bit_cast<double>((shifted & fraction_mask) + offset) - 1;

  const TwoDoubles below = fast_two_sum(2, f);
  const double quotient = f / below.high;
  const double remainder = std::fma(-quotient, below.high, f) - quotient * below.low;
  const TwoDoubles s = fast_two_sum(quotient, remainder / below.high);
  const TwoDoubles z = multiply(s, s);
  double rest = 2.0 / (2 * kTerms + 1);
  for (int i = kTerms - 1; i >= 3; --i) rest = std::fma(rest, z.high, 2.0 / (2 * i + 1));
  TwoDoubles series = fast_two_sum(two_over(5).high, two_over(5).low + z.high * rest);
  series = multiply(z, series);
  const TwoDoubles third = two_over(3);
  series = add(third.high, fast_two_sum(series.high, series.low + third.low));
  series = add(2, multiply(z, series));
  const TwoDoubles fraction = multiply(s, series);
  if (k == 0) return fraction;
  // k times the high part of ln 2 is exact, and larger than the fraction.
  const TwoDoubles whole = add(k * C::kLn2High, fraction);
  return fast_two_sum(whole.high, whole.low + k * C::kLn2Low);
}

// x^y for 0 < x < inf and a finite y.
inline float positive_power(float x, float y) {
  return static_cast<float>(lockstep_exp(static_cast<double>(y) * lockstep_log<double>(x)));
}
inline double positive_power(double x, double y) {
  using C = MathConstants<double>;
  const TwoDoubles log = log_in_two(x);
  const double high = y * log.high;
  if (high > C::kExpMax + 1) return std::numeric_limits<double>::infinity();
  if (high < C::kExpMin) return 0;
  const double low = std::fma(y, log.high, -high) + y * log.low;
  const auto [n, r, tail] = reduce_exp(high);
  const double result = 1 + (r + std::fma(low, 1 + (r + tail), tail));  // e^low = 1 + low
  const auto whole = static_cast<int64_t>(n), half = whole >> 1;
  return result * power_of_two<double>(half) * power_of_two<double>(whole - half);
}

template <typename T>
bool is_integer(T y) {
  return std::floor(y) == y;
}
template <typename T>
bool is_odd(T y) {  // halving is exact; large numbers are even
  return is_integer(y) && !is_integer(y / 2);
}

}  // namespace math_detail

// x^0 = 1 and 1^y = 1 even for NaN; x < 0 with a y that is not an integer gives the canonical NaN.
template <typename T>
T lockstep_pow(T x, T y) {
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  if (y == 0 || x == 1) return T(1);
  if (x != x || y != y) return std::numeric_limits<T>::quiet_NaN();
  const T magnitude = std::fabs(x);
  if (std::fabs(y) == kInfinity) {
    if (magnitude == 1) return T(1);
    return (magnitude > 1) == (y > 0) ? kInfinity : T(0);
  }
  const T sign = std::signbit(x) && math_detail::is_odd(y) ? T(-1) : T(1);
  if (magnitude == 0) return sign * (y > 0 ? T(0) : kInfinity);
  if (magnitude == kInfinity) return sign * (y > 0 ? kInfinity : T(0));
  if (x < 0 && !math_detail::is_integer(y)) return std::numeric_limits<T>::quiet_NaN();
  return sign * math_detail::positive_power(magnitude, y);
}

}  // namespace lockstep
