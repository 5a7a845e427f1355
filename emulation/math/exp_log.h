// exp, log and tanh with the same bits on every machine.
// They use only additions, multiplications, divisions and std::fma, each correctly rounded, in a
// fixed order. emulation/kernels/simd/elements/exp_log-inl.h repeats the order in vectors.
// Polynomial coefficients are Taylor's (1/i!, 2/(2i+1)), so every number here has a derivation.
//
// Error (tested): within 1 ulp, in float and in double.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace lockstep {

template <typename T>
struct MathConstants {
  static constexpr bool kIsFloat = std::is_same_v<T, float>;
  using Bits = std::conditional_t<kIsFloat, uint32_t, uint64_t>;
  using Int = std::conditional_t<kIsFloat, int32_t, int64_t>;
  static constexpr int kFractionBits = kIsFloat ? 23 : 52;
  static constexpr int kBias = kIsFloat ? 127 : 1023;
  // ln 2 in two parts: the high one has at most 13 (33) significand bits, so that n * high is exact
  // for every exponent n.
  static constexpr T kLn2High = kIsFloat ? T(0x1.62ep-1) : T(0x1.62e42feep-1);
  static constexpr T kLn2Low = kIsFloat ? T(0x1.0bfbe8e7bcd5ep-15) : T(0x1.a39ef35793c76p-33);
  static constexpr T kLog2E = T(0x1.71547652b82fep+0);
  // Adding and subtracting 1.5 * 2^fraction bits rounds to an integer.
  static constexpr T kRoundToInteger = kIsFloat ? T(0x1.8p23) : T(0x1.8p52);
  // exp: terms r^2/2! ... r^kExpTerms/kExpTerms!; |r| <= ln2/2 leaves less than 2^-28 (2^-57).
  static constexpr int kExpTerms = kIsFloat ? 8 : 14;
  // log: terms of 2/(2i+1) s^(2i); |s| <= 0.1716 leaves less than 2^-28 (2^-57) relative to s^2.
  static constexpr int kLogTerms = kIsFloat ? 5 : 11;
  // Beyond these exp overflows, or rounds to zero.
  static constexpr T kExpMax = kIsFloat ? T(0x1.62e42ep6) : T(0x1.62e42fefa39efp9);
  static constexpr T kExpMin = kIsFloat ? T(-104) : T(-746);
  // From here on tanh rounds to 1: 1 - tanh x = 2 / (exp(2x) + 1) < 2^-26 (2^-55).
  static constexpr T kTanhOne = kIsFloat ? T(10) : T(20);

  static constexpr std::array<T, kExpTerms + 1> kInverseFactorial = [] {
    std::array<T, kExpTerms + 1> table{};
    double factorial = 1;
    for (int i = 0; i <= kExpTerms; ++i) {
      if (i > 0) factorial *= i;
      table[static_cast<size_t>(i)] = static_cast<T>(1 / factorial);
    }
    return table;
  }();
  static constexpr std::array<T, kLogTerms + 1> kTwoOverOdd = [] {
    std::array<T, kLogTerms + 1> table{};
    for (int i = 0; i <= kLogTerms; ++i) {
      table[static_cast<size_t>(i)] = static_cast<T>(2.0 / (2 * i + 1));
    }
    return table;
  }();
};

namespace math_detail {

// 2^n as a number. Requires: a normal exponent.
template <typename T>
T power_of_two(typename MathConstants<T>::Int n) {
  using C = MathConstants<T>;
  return std::bit_cast<T>(static_cast<typename C::Bits>(n + C::kBias) << C::kFractionBits);
}

// The rounding error of sum = round(x + y) (TwoSum).
template <typename T>
T two_sum_error(T x, T y, T sum) {
  const T from_y = sum - x;
  return (x - (sum - from_y)) + (y - from_y);
}

// x = n ln2 + r, |r| <= ln2 / 2, and exp(r) - 1 = r + tail. The tail includes r's rounding error.
template <typename T>
struct ReducedExp {
  T n, r, tail;
};
template <typename T>
ReducedExp<T> reduce_exp(T x) {
  using C = MathConstants<T>;
  const T n = std::fma(x, C::kLog2E, C::kRoundToInteger) - C::kRoundToInteger;
  const T high = std::fma(-n, C::kLn2High, x);  // exact
  const T low = n * C::kLn2Low;
  const T r = high - low;
  const T r_error = (high - r) - low;
  T q = C::kInverseFactorial[C::kExpTerms];
  for (int i = C::kExpTerms - 1; i >= 2; --i) {
    q = std::fma(q, r, C::kInverseFactorial[static_cast<size_t>(i)]);
  }
  return {n, r, std::fma(r * r, q, r_error)};
}

}  // namespace math_detail

// e^x. exp(-inf) = 0, exp(inf) = inf, NaN gives the canonical NaN. Subnormal results are produced.
template <typename T>
T lockstep_exp(T x) {
  using C = MathConstants<T>;
  if (x != x) return std::numeric_limits<T>::quiet_NaN();
  if (x > C::kExpMax) return std::numeric_limits<T>::infinity();
  if (x < C::kExpMin) return T(0);
  const auto [n, r, tail] = math_detail::reduce_exp(x);
  const T y = T(1) + (r + tail);
  // Two factors, because 2^n itself may be subnormal or too large.
  const auto whole = static_cast<typename C::Int>(n);
  const auto half = whole >> 1;
  return y * math_detail::power_of_two<T>(half) * math_detail::power_of_two<T>(whole - half);
}

// Natural logarithm. log(0) = -inf, log(inf) = inf; NaN or x < 0 give the canonical NaN.
//   x = 2^k (1 + f), 1 + f in [sqrt(1/2), sqrt(2)),  s = f / (2 + f),
//   log(1 + f) = f - f^2/2 + s (f^2/2 + R),  R = 2/3 s^2 + 2/5 s^4 + ...
// Source: the identity log(1+f) = 2 atanh(s); arranged so that f, the large part, comes last.
template <typename T>
T lockstep_log(T x) {
  using C = MathConstants<T>;
  using Bits = typename C::Bits;
  if (!(x > 0)) {
    return x == 0 ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::quiet_NaN();
  }
  if (x > std::numeric_limits<T>::max()) return x;
  const bool subnormal = x < std::numeric_limits<T>::min();
  const T scaled = subnormal ? x * math_detail::power_of_two<T>(C::kFractionBits + 1) : x;
  // Bits of sqrt(1/2), rounded up: subtracting them moves 1 + f into the wanted interval.
  const Bits offset = std::bit_cast<Bits>(C::kIsFloat ? T(0x1.6a09e8p-1) : T(0x1.6a09e667f3bcdp-1));
  const Bits shifted = std::bit_cast<Bits>(scaled) - offset;
  const auto k = static_cast<T>(static_cast<typename C::Int>(shifted) >> C::kFractionBits) -
                 (subnormal ? T(C::kFractionBits + 1) : T(0));
  const Bits fraction_mask = (Bits(1) << C::kFractionBits) - 1;
  const T f = std::bit_cast<T>((shifted & fraction_mask) + offset) - T(1);
  const T s = f / (T(2) + f);
  const T z = s * s;
  T series = C::kTwoOverOdd[C::kLogTerms];
  for (int i = C::kLogTerms - 1; i >= 1; --i) {
    series = std::fma(series, z, C::kTwoOverOdd[static_cast<size_t>(i)]);
  }
  const T half_square = T(0.5) * f * f;
  const T tail = std::fma(s, half_square + z * series, k * C::kLn2Low);
  return k * C::kLn2High + (f - (half_square - tail));
}

// Hyperbolic tangent, odd; tanh(+-inf) = +-1. With t = exp(2|x|) - 1: tanh |x| = t / (t + 2).
template <typename T>
T lockstep_tanh(T x) {
  using C = MathConstants<T>;
  if (x != x) return std::numeric_limits<T>::quiet_NaN();
  const T magnitude = std::fabs(x);
  if (magnitude > C::kTanhOne) return std::copysign(T(1), x);
  const auto [n, r, tail] = math_detail::reduce_exp(magnitude + magnitude);
  const T scale = math_detail::power_of_two<T>(static_cast<typename C::Int>(n));
  // t and t + 2 in two parts each, so that only the last addition rounds to T.
  const T base = scale - T(1), scaled = scale * r;
  const T sum = base + scaled;
  const T rest = math_detail::two_sum_error(base, scaled, sum) + scale * tail;
  const T t = sum + rest;
  const T t_low = math_detail::two_sum_error(sum, rest, t);
  const T below = t + T(2);
  const T below_low = math_detail::two_sum_error(t, T(2), below) + t_low;
  const T quotient = t / below;
  const T remainder = std::fma(-quotient, below, t) + std::fma(-quotient, below_low, t_low);
  return std::copysign(quotient + remainder / below, x);
}

}  // namespace lockstep
