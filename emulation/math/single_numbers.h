// The arithmetic on single numbers for all elementwise functions: ScalarMath, and the functions
// that have no vector version.
#pragma once

#include "emulation/math/functions.h"
#include "emulation/math/gamma.h"
#include "emulation/math/hyperbolic.h"
#include "emulation/math/trigonometry.h"

namespace lockstep {

template <typename T>
struct SingleNumbers : ScalarMath<T> {
  static T exp2(T x) { return lockstep_exp2(x); }
  static T sin(T x) { return lockstep_sin(x); }
  static T cos(T x) { return lockstep_cos(x); }
  static T tan(T x) { return lockstep_tan(x); }
  static T asin(T x) { return lockstep_asin(x); }
  static T acos(T x) { return lockstep_acos(x); }
  static T atan(T x) { return lockstep_atan(x); }
  static T sinh(T x) { return lockstep_sinh(x); }
  static T cosh(T x) { return lockstep_cosh(x); }
  static T asinh(T x) { return lockstep_asinh(x); }
  static T acosh(T x) { return lockstep_acosh(x); }
  static T atanh(T x) { return lockstep_atanh(x); }
  static T lgamma(T x) { return lockstep_lgamma(x); }
  static T digamma(T x) { return lockstep_digamma(x); }
  static T trigamma(T x) { return lockstep_trigamma(x); }
  static T floor(T x) { return std::floor(x); }
  static T ceil(T x) { return std::ceil(x); }
  static T round(T x) { return std::nearbyint(x); }
  static T trunc(T x) { return std::trunc(x); }
};

}  // namespace lockstep
