// sinh, cosh, asinh, acosh, atanh and 2^x with the same bits on every machine: in double, for
// floats then rounded.
//
// Error (tested): within 3 ulp; asinh, acosh and atanh within 3.5.
#pragma once

#include "emulation/math/functions.h"
#include "emulation/math/power.h"

namespace lockstep {
namespace math_detail {

inline constexpr double kLn2 = 0x1.62e42fefa39efp-1;
// From here on x^2 + 1 and x^2 - 1 are x^2.
inline constexpr double kSquareAlone = 0x1p28;

// e^x / 2 where e^x itself may overflow.
inline double half_exp(double x) {
  const double root = lockstep_exp(0.5 * x);
  return 0.5 * root * root;
}

inline double sinh_double(double x) {
  const double magnitude = std::fabs(x);
  if (magnitude > MathConstants<double>::kExpMax) return std::copysign(half_exp(magnitude), x);
  const double less = lockstep_expm1(magnitude);
  const double y = magnitude > 40 ? 0.5 * less : 0.5 * (less + less / (less + 1));
  return std::copysign(y, x);
}

inline double cosh_double(double x) {
  const double magnitude = std::fabs(x);
  if (magnitude > MathConstants<double>::kExpMax) return half_exp(magnitude);
  const double e = lockstep_exp(magnitude);
  return 0.5 * e + 0.5 / e;
}

inline double asinh_double(double x) {
  const double magnitude = std::fabs(x);
  double y;
  if (magnitude > kSquareAlone) {
    y = lockstep_log(magnitude) + kLn2;
  } else {
    const double square = magnitude * magnitude;
    y = lockstep_log1p(magnitude + square / (1 + std::sqrt(1 + square)));
  }
  return std::copysign(y, x);
}

inline double acosh_double(double x) {
  if (!(x >= 1)) return std::numeric_limits<double>::quiet_NaN();
  if (x > kSquareAlone) return lockstep_log(x) + kLn2;
  const double above = x - 1;
  return lockstep_log1p(above + std::sqrt(above * (above + 2)));
}

inline double atanh_double(double x) {
  const double magnitude = std::fabs(x);
  return std::copysign(0.5 * lockstep_log1p(2 * magnitude / (1 - magnitude)), x);
}

}  // namespace math_detail

template <typename T>
T lockstep_exp2(T x) {
  return lockstep_pow(T(2), x);
}
template <typename T>
T lockstep_sinh(T x) {
  return static_cast<T>(math_detail::sinh_double(x));
}
template <typename T>
T lockstep_cosh(T x) {
  return static_cast<T>(math_detail::cosh_double(x));
}
template <typename T>
T lockstep_asinh(T x) {
  return static_cast<T>(math_detail::asinh_double(x));
}
// NaN below 1.
template <typename T>
T lockstep_acosh(T x) {
  return static_cast<T>(math_detail::acosh_double(x));
}
// NaN outside of [-1, 1], infinite at its ends.
template <typename T>
T lockstep_atanh(T x) {
  return static_cast<T>(math_detail::atanh_double(x));
}

}  // namespace lockstep
