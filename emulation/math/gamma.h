// ln |Gamma(x)|, its derivative digamma and the second one, trigamma, with the same bits on every
// machine: in double, for floats then rounded. Below kSeriesFrom, x goes up by steps of 1; from
// there on Stirling's series, B the Bernoulli numbers:
//   ln Gamma   (x - 1/2) ln x - x + ln(2 pi) / 2 + sum of B_2k / (2k (2k - 1) x^(2k - 1))
//   digamma    ln x - 1 / (2 x) - sum of B_2k / (2k x^2k)
//   trigamma   1 / x + 1 / (2 x^2) + sum of B_2k / x^(2k + 1)
//
// Error (tested): |error| <= kGammaError (1 + |y|), for x > 0; ln Gamma is 0 at 1 and 2, and a
// relative bound does not hold there. trigamma, the slope of digamma, takes as many steps and terms
// as PyTorch's, so that FP64 gradients agree: B_8 / x^9 is left out, kTrigammaError.
#pragma once

#include <array>
#include <numbers>

#include "emulation/math/trigonometry.h"

namespace lockstep {

inline constexpr double kGammaError = 0x1p-47;
inline constexpr double kTrigammaError = 0x1p-29;  // 1 / 30 / 6.5^9

namespace math_detail {

inline constexpr int kTrigammaSteps = 6;
inline constexpr size_t kTrigammaTerms = 3;
// At 10 the first term left out, B_18, is below 2^-58 of both sums.
inline constexpr double kSeriesFrom = 10;
inline constexpr std::array<double, 8> kBernoulli = {  // B_2, B_4, ... B_16
    1.0 / 6, -1.0 / 30, 1.0 / 42, -1.0 / 30, 5.0 / 66, -691.0 / 2730, 7.0 / 6, -3617.0 / 510};

inline bool is_pole(double x) {
  return x <= 0 && x == std::floor(x);
}

inline double lgamma_double(double x) {
  if (x != x) return x;
  if (is_pole(x) || std::isinf(x)) return std::numeric_limits<double>::infinity();
  if (x < 0.5) {
    // Gamma(x) Gamma(1 - x) = pi / sin(pi x); whole turns are taken off first, exactly.
    const double sine = std::fabs(sin_double(std::numbers::pi * (x - std::nearbyint(x))));
    return lockstep_log(std::numbers::pi / sine) - lgamma_double(1 - x);
  }
  if (x == 1 || x == 2) return 0;
  double product = 1;
  for (; x < kSeriesFrom; x += 1) product *= x;
  const double square = 1 / (x * x);
  double sum = 0;
  for (size_t k = kBernoulli.size(); k-- > 0;) {
    const auto twice = static_cast<double>(2 * k + 2);
    sum = sum * square + kBernoulli[k] / (twice * (twice - 1));
  }
  constexpr double kHalfLogTwoPi = 0x1.d67f1c864beb5p-1;
  const double log = lockstep_log(x);
  return ((x - 0.5) * log - x) + (kHalfLogTwoPi + sum / x) - lockstep_log(product);
}

inline double digamma_double(double x) {
  if (x != x || is_pole(x)) return std::numeric_limits<double>::quiet_NaN();
  if (x < 0.5) {
    const ReducedAngle angle = angle_of(std::numbers::pi * (x - std::nearbyint(x)));
    return digamma_double(1 - x) - std::numbers::pi * sin_after(angle, 1) / sin_after(angle, 0);
  }
  double below = 0;
  for (; x < kSeriesFrom; x += 1) below += 1 / x;
  const double square = 1 / (x * x);
  double sum = 0;
  for (size_t k = kBernoulli.size(); k-- > 0;) {
    sum = sum * square + kBernoulli[k] / static_cast<double>(2 * k + 2);
  }
  return lockstep_log(x) - 0.5 / x - sum * square - below;
}

inline double trigamma_double(double x) {
  if (x != x || x == -std::numeric_limits<double>::infinity()) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (is_pole(x)) return std::numeric_limits<double>::infinity();
  if (x < 0.5) {
    const double sine = sin_double(std::numbers::pi * (x - std::nearbyint(x)));
    const double ratio = std::numbers::pi / sine;
    return ratio * ratio - trigamma_double(1 - x);
  }
  double below = 0;
  for (int step = 0; step < kTrigammaSteps; ++step, x += 1) below += 1 / (x * x);
  const double square = 1 / (x * x);
  double sum = 0;
  for (size_t k = kTrigammaTerms; k-- > 0;) sum = sum * square + kBernoulli[k];
  return below + (1 + 0.5 / x + sum * square) / x;
}

}  // namespace math_detail

// Infinite at 0, -1, -2, ...
template <typename T>
T lockstep_lgamma(T x) {
  return static_cast<T>(math_detail::lgamma_double(x));
}
// d/dx ln |Gamma(x)|
template <typename T>
T lockstep_digamma(T x) {
  if (x == 0) return std::copysign(std::numeric_limits<T>::infinity(), -x);  // torch's
  return static_cast<T>(math_detail::digamma_double(x));
}
template <typename T>
T lockstep_trigamma(T x) {
  return static_cast<T>(math_detail::trigamma_double(x));
}

}  // namespace lockstep
