// erf, expm1, log1p and sigmoid with the same bits on every machine.
// The formulas are in emulation/math/functions-inl.h. Here are their constants and the arithmetic
// on single numbers that defines the bits.
#pragma once

#include <hwy/base.h>

#include <algorithm>
#include <array>

#include "emulation/math/erf_coefficients.h"
#include "emulation/math/exp_log.h"
#include "emulation/math/power.h"

namespace lockstep {

template <typename T>
struct FunctionConstants {
  static constexpr bool kIsFloat = std::is_same_v<T, float>;
  // expm1: below, exp(x) < 2^-26 (2^-55) and -1 is nearest; above, the 1 is less than half an ulp.
  static constexpr double kExpm1MinusOne = kIsFloat ? -20 : -40;
  static constexpr double kExpm1IsExp = kIsFloat ? 40 : 80;
  // erf: from here on erfc < 2^-25 (2^-54). Also the upper ends of the fits.
  static constexpr double kErfOne = kIsFloat ? 4 : 6;
  // erf uses the series up to here. Its terms, z = x^2 <= 1.5625, fall below 2^-28 (2^-57) after
  //   z^14 / (14! 29) = 2^-32.2,  z^22 / (22! 45) = 2^-61.3.
  static constexpr double kErfSeriesEnd = 1.25;
  static constexpr int kErfTerms = kIsFloat ? 14 : 22;
  // (-1)^i 2 / sqrt(pi) / (i! (2i + 1)), the first minus 1, so that x is added last.
  static constexpr std::array<T, kErfTerms> kErfSeries = [] {
    constexpr double kTwoOverSqrtPi = 0x1.20dd750429b6dp+0;
    constexpr double kTwoOverSqrtPiLess1 = 0x1.06eba8214db69p-3;
    std::array<T, kErfTerms> table{};
    double factorial = 1;
    for (int i = 0; i < kErfTerms; ++i) {
      if (i > 0) factorial *= -i;
      table[static_cast<size_t>(i)] =
          static_cast<T>(i == 0 ? kTwoOverSqrtPiLess1 : kTwoOverSqrtPi / (factorial * (2 * i + 1)));
    }
    return table;
  }();
  // u = 2 (t - t1) / (t0 - t1) - 1, t0 = 4 / (1 + 4), t1 = 4 / (kErfOne + 4).
  static constexpr double kT0 = 4.0 / 5, kT1 = 4 / (kErfOne + 4);
  static constexpr double kErfcSlope = 2 / (kT0 - kT1);
  static constexpr double kErfcShift = -(kT0 + kT1) / (kT0 - kT1);
  static constexpr auto kErfc = [] {
    if constexpr (kIsFloat) {
      return kErfcFloat;
    } else {
      return kErfcDouble;
    }
  }();
};

// Single numbers.
template <typename Type>
struct ScalarMath {
  using T = Type;
  using V = T;
  static T set(double constant) { return static_cast<T>(constant); }
  static bool lt(T x, T y) { return x < y; }
  static bool le(T x, T y) { return x <= y; }
  static bool eq(T x, T y) { return x == y; }
  static bool both(bool a, bool b) { return a && b; }
  static T select(bool condition, T yes, T no) { return condition ? yes : no; }
  static T fma(T x, T y, T z) { return std::fma(x, y, z); }
  static T neg(T x) { return -x; }
  static T clamp(T x, T low, T high) {  // NaN stays; `high` wins over `low`
    const T above = x < low ? low : x;
    return above > high ? high : above;
  }
  static T pow(T x, T y) { return lockstep_pow(x, y); }
  static T abs(T x) { return std::fabs(x); }
  static T sqrt(T x) { return std::sqrt(x); }
  static T copysign(T x, T sign) { return std::copysign(x, sign); }
  static T exp(T x) { return lockstep_exp(x); }
  static T log(T x) { return lockstep_log(x); }
  static T tanh(T x) { return lockstep_tanh(x); }
  static T two_sum_error(T x, T y, T sum) { return math_detail::two_sum_error(x, y, sum); }
  static T power_of_two(T n) {
    return math_detail::power_of_two<T>(static_cast<typename MathConstants<T>::Int>(n));
  }
  static void reduce_exp(T x, T& n, T& r, T& tail) {
    const auto reduced = math_detail::reduce_exp(x);
    n = reduced.n;
    r = reduced.r;
    tail = reduced.tail;
  }
};

#include "emulation/math/functions-inl.h"

// 2 / sqrt(pi) integral of exp(-t^2) from 0 to x; odd, erf(+-inf) = +-1.
template <typename T>
T lockstep_erf(T x) {
  return Functions<ScalarMath<T>>::erf(x);
}
// e^x - 1; expm1(-inf) = -1, the sign of zero stays.
template <typename T>
T lockstep_expm1(T x) {
  return Functions<ScalarMath<T>>::expm1(x);
}
// log(1 + x); log1p(-1) = -inf, NaN below, the sign of zero stays.
template <typename T>
T lockstep_log1p(T x) {
  return Functions<ScalarMath<T>>::log1p(x);
}
template <typename T>
T lockstep_sigmoid(T x) {
  return Functions<ScalarMath<T>>::sigmoid(x);
}

}  // namespace lockstep
