// sin, cos, tan, asin, acos, atan and atan2 with the same bits on every machine, for every finite
// number.
//   float    in double, then rounded
//   double   sin and cos: x - n pi/2 from 192 bits of 2/pi, as a sum of two doubles, then Taylor's
//            series; atan: atan(k/8) + atan of a number of at most 1/16
//
// Error (tested): sin and cos within 1 ulp, atan within 1.5, tan, asin, acos and atan2 within 2.5.
// Source: M. Payne, R. Hanek, "Radian Reduction for Trigonometric Functions", SIGNUM 1983.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "emulation/math/power.h"
#include "emulation/math/trigonometric_tables.h"

namespace lockstep {
namespace math_detail {

// x = (4 m + quadrant) pi/2 + angle for an integer m; |angle| <= pi/4.
struct ReducedAngle {
  int quadrant;
  TwoDoubles angle;
};

// Requires: |x| >= pi/4, finite.
inline ReducedAngle reduce_angle(double x) {
  using Words = unsigned __int128;
  constexpr int kWordBits = 64, kPointBits = 64;  // bits before the binary point in the table
  using C = MathConstants<double>;
  const uint64_t bits = std::bit_cast<uint64_t>(std::fabs(x)),
                 one = uint64_t{1} << C::kFractionBits;
  // |x| = whole 2^(exponent - 53)
  const auto exponent = static_cast<int>(bits >> C::kFractionBits) - 1022;
  const uint64_t whole = (bits & (one - 1)) | one;
  // The bit of 2/pi that the lowest bit of `whole` turns into 2: higher ones give multiples of 4.
  const int first = kPointBits + exponent - 53 - 2;
  const auto word = static_cast<size_t>(first / kWordBits);
  const int shift = first % kWordBits;
  std::array<uint64_t, 3> window;
  for (size_t i = 0; i < 3; ++i) {
    const uint64_t next = kTwoOverPi[word + i + 1];
    window[i] = shift == 0 ? kTwoOverPi[word + i]
                           : (kTwoOverPi[word + i] << shift) | (next >> (kWordBits - shift));
  }
  // product = whole window mod 2^192, in units of 2^-190.
  const Words low = static_cast<Words>(window[2]) * whole;
  const Words middle = static_cast<Words>(window[1]) * whole + static_cast<uint64_t>(low >> 64);
  const uint64_t high = window[0] * whole + static_cast<uint64_t>(middle >> 64);
  int quadrant = static_cast<int>(high >> 62);
  // The part after the quadrant, in units of 2^-128 of pi/2, and to the nearest quadrant.
  Words rest = static_cast<Words>((high << 2) | (static_cast<uint64_t>(middle) >> 62)) << 64 |
               ((static_cast<uint64_t>(middle) << 2) | (static_cast<uint64_t>(low) >> 62));
  uint64_t below = static_cast<uint64_t>(low) << 2;  // 62 more bits
  const bool above_half = rest >> 127 != 0;
  if (above_half) {
    ++quadrant;
    below = ~below;
    rest = ~rest;  // 1 - rest, but for 2^-192
  }
  // As two doubles: the leading 53 bits, then the next ones.
  int zeros = 0;
  while (zeros < 127 && !(rest >> 127)) {
    rest = rest << 1 | below >> 63;
    below <<= 1;
    ++zeros;
  }
  const auto top = static_cast<uint64_t>(rest >> 75), next = static_cast<uint64_t>(rest >> 22);
  const auto tail = static_cast<double>(next & ((uint64_t{1} << 53) - 1));
  const TwoDoubles turn = {static_cast<double>(top) * power_of_two<double>(-53 - zeros),
                           tail * power_of_two<double>(-106 - zeros)};
  TwoDoubles angle = multiply(turn, {kHalfPiHigh, kHalfPiLow});
  const bool negative = above_half != std::signbit(x);
  if (negative) angle = {-angle.high, -angle.low};
  return {(std::signbit(x) ? -quadrant : quadrant) & 3, angle};
}

// 1/f!, -1/(f+2)!, 1/(f+4)!, ... with the sign of (-1)^(f/2); the factorials are exact up to 18!.
template <int kFirst>
constexpr std::array<double, 8> inverse_factorials() {
  std::array<double, 8> terms{};
  double factorial = 1;
  for (int i = 2; i < kFirst + 16; ++i) {
    factorial *= i;
    const int term = i - kFirst;
    if (term < 0 || term % 2 != 0) continue;
    terms[static_cast<size_t>(term / 2)] = (i / 2 % 2 == 0 ? 1 : -1) / factorial;
  }
  return terms;
}

// sin and cos of an angle of at most pi/4. Terms up to x^17 / 17! and x^18 / 18! leave less than
// 2^-62 of the result.
inline double sin_series(TwoDoubles angle) {
  static constexpr std::array<double, 8> kTerms = inverse_factorials<3>();
  const double x = angle.high, z = x * x;
  double series = kTerms.back();
  for (size_t i = kTerms.size() - 1; i-- > 0;) series = std::fma(series, z, kTerms[i]);
  return x + std::fma(x * z, series, angle.low * (1 - 0.5 * z));
}
inline double cos_series(TwoDoubles angle) {
  static constexpr std::array<double, 8> kTerms = inverse_factorials<4>();
  const double x = angle.high, z = x * x;
  double series = kTerms.back();
  for (size_t i = kTerms.size() - 1; i-- > 0;) series = std::fma(series, z, kTerms[i]);
  const double half = 0.5 * z, first = 1 - half;
  return first + (((1 - first) - half) + std::fma(z * z, series, -x * angle.low));
}

// The angle NaN without a finite x.
inline ReducedAngle angle_of(double x) {
  constexpr double kQuarterPi = 0x1.921fb54442d18p-1;
  if (!std::isfinite(x)) return {0, {std::numeric_limits<double>::quiet_NaN(), 0}};
  return std::fabs(x) < kQuarterPi ? ReducedAngle{0, {x, 0}} : reduce_angle(x);
}
// sin(x + quarter_turns pi/2)
inline double sin_after(const ReducedAngle& x, int quarter_turns) {
  const int quadrant = x.quadrant + quarter_turns;
  const double value = quadrant % 2 == 0 ? sin_series(x.angle) : cos_series(x.angle);
  return quadrant % 4 < 2 ? value : -value;
}
inline double sin_double(double x) {
  return sin_after(angle_of(x), 0);
}
inline double cos_double(double x) {
  return sin_after(angle_of(x), 1);
}

// atan of x in [0, 1]: atan c + atan t, c = k / 8 the nearest, t = (x - c) / (1 + x c). Terms up to
// t^13 / 13 leave less than 2^-62 of t.
inline double atan_of_fraction(double x) {
  const int k = static_cast<int>(8 * x + 0.5);
  const double c = k / 8.0, t = (x - c) / std::fma(x, c, 1.0), z = t * t;
  double series = 1.0 / 13;
  for (int i = 5; i >= 1; --i) series = std::fma(-series, z, 1.0 / (2 * i + 1));
  const double rest = std::fma(-t * z, series, kArctangentRest[static_cast<size_t>(k)]);
  return kArctangent[static_cast<size_t>(k)] + (t + rest);
}

inline double atan_double(double x) {
  if (x != x) return std::numeric_limits<double>::quiet_NaN();
  const double magnitude = std::fabs(x);
  const double angle = magnitude <= 1
                           ? atan_of_fraction(magnitude)
                           : kHalfPiHigh - (atan_of_fraction(1 / magnitude) - kHalfPiLow);
  return std::copysign(angle, x);
}

// The angle of the point (x, y) in [-pi, pi], with C's special values.
inline double atan2_double(double y, double x) {
  if (x != x || y != y) return std::numeric_limits<double>::quiet_NaN();
  const double high = std::fabs(y), wide = std::fabs(x);
  double angle;
  if (high == wide) {
    angle = high == 0 ? 0 : kHalfPiHigh / 2;
  } else if (high < wide) {
    angle = atan_of_fraction(high / wide);
  } else {
    angle = kHalfPiHigh - (atan_of_fraction(wide / high) - kHalfPiLow);
  }
  if (std::signbit(x)) angle = 2 * kHalfPiHigh - (angle - 2 * kHalfPiLow);
  return std::copysign(angle, y);
}

}  // namespace math_detail

// sin(+-inf) = NaN; the sign of zero stays.
template <typename T>
T lockstep_sin(T x) {
  return x == 0 ? x : static_cast<T>(math_detail::sin_double(x));
}
template <typename T>
T lockstep_cos(T x) {
  return static_cast<T>(math_detail::cos_double(x));
}
template <typename T>
T lockstep_tan(T x) {
  const math_detail::ReducedAngle angle = math_detail::angle_of(x);
  return x == 0 ? x : static_cast<T>(sin_after(angle, 0) / sin_after(angle, 1));
}
template <typename T>
T lockstep_atan(T x) {
  return static_cast<T>(math_detail::atan_double(x));
}
template <typename T>
T lockstep_atan2(T y, T x) {
  return static_cast<T>(math_detail::atan2_double(y, x));
}
// NaN outside of [-1, 1].
template <typename T>
T lockstep_asin(T x) {
  const double wide = x;
  return static_cast<T>(math_detail::atan2_double(wide, std::sqrt((1 - wide) * (1 + wide))));
}
template <typename T>
T lockstep_acos(T x) {
  const double wide = x;
  return static_cast<T>(math_detail::atan2_double(std::sqrt((1 - wide) * (1 + wide)), wide));
}

}  // namespace lockstep
