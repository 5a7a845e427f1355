// Rounds a value to nearest even inside a hot scalar loop.
// Gives the results of round_to_format, accumulate_step and accumulate_add by one addition of a
// large constant instead of integer arithmetic. Knows IEEE-like formats only: subnormals, overflow
// to infinity. Adding c = 1.5 * 2^(e + 53 - p) to an x of exponent e leaves p bits of x.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>

#include "emulation/accumulator/accumulator_event.h"
#include "emulation/format/format.h"
#include "src/core/host_device.h"

namespace lockstep {

// The one NaN that kernels return, so that no payload or sign depends on operand order.
template <typename T>
LOCKSTEP_HOST_DEVICE inline T canonical_nan(T x) {
  return x == x ? x : std::numeric_limits<T>::quiet_NaN();
}

inline constexpr uint64_t kDoubleExponentMask = 0x7ff0000000000000;
inline constexpr int kDoublePrecision = 53;

// x + y rounded to odd, for a sum that does not overflow (see double_arithmetic.h).
LOCKSTEP_HOST_DEVICE inline double fast_add_to_odd(double x, double y) {
  const double sum = x + y;
  const double from_y = sum - x;
  const double error = (x - (sum - from_y)) + (y - from_y);
  if (!(std::fabs(error) > 0)) return sum;                     // exact; also infinite or NaN sums
  const bool away = std::signbit(error) != std::signbit(sum);  // |sum| is beyond the exact sum
  return std::bit_cast<double>((std::bit_cast<uint64_t>(sum) - (away ? 1 : 0)) | 1);
}

class FastRound {
 public:
  static bool covers(const Format& format) {
    return format.is_fp64() || (format.is_ieee_like() && format.precision <= kDoublePrecision - 2);
  }
  // Throws: std::logic_error for a format that is not covered.
  explicit FastRound(const Format& format)
      : is_fp64_(format.is_fp64()),
        min_normal_(format.min_normal()),
        max_finite_(format.max_finite),
        magic_factor_(1.5 * std::ldexp(1.0, kDoublePrecision - format.precision)) {
    if (!covers(format)) {
      throw std::logic_error("FastRound: format " + format.name + " is not IEEE-like");
    }
  }

  LOCKSTEP_HOST_DEVICE double operator()(double x) const {
    if (is_fp64_) return canonical_nan(x);
    const double binade = std::bit_cast<double>(std::bit_cast<uint64_t>(x) & kDoubleExponentMask);
    const double magic = (binade > min_normal_ ? binade : min_normal_) * magic_factor_;
    const double rounded = (x + magic) - magic;
    if (std::fabs(rounded) <= max_finite_) return std::copysign(rounded, x);
    // Overflow, infinity or NaN (an infinite binade makes `rounded` NaN).
    return x == x ? std::copysign(std::numeric_limits<double>::infinity(), x) : canonical_nan(x);
  }

  // accumulate_add. The sum is rounded to odd first. The double of a sum of few bits, but far apart
  // in exponent (2^-100 + 257 in BF16), would be a midpoint; the exact sum is next to it.
  LOCKSTEP_HOST_DEVICE double add(double acc, double x) const {
    return (*this)(is_fp64_ ? acc + x : fast_add_to_odd(acc, x));
  }

  // accumulate_step. Requires: the product is exact in double.
  LOCKSTEP_HOST_DEVICE double step(double acc, double a, double b) const {
    return (*this)(fast_add_to_odd(acc, a * b));
  }

  // The same, with events.
  LOCKSTEP_HOST_DEVICE double step(double acc, double a, double b, uint8_t& events) const {
    const double exact = fast_add_to_odd(acc, a * b);
    const double result = (*this)(exact);
    if (result != result) {
      events |= kStepNan;
    } else if (std::fabs(result) > max_finite_) {
      if (std::isfinite(acc) && std::isfinite(a) && std::isfinite(b)) {
        events |= kStepToInfinity | kStepInexact;
      }
    } else if (result != exact) {
      events |= result == 0 ? kStepInexact | kStepToZero : kStepInexact;
    }
    return result;
  }

 private:
  bool is_fp64_;
  double min_normal_, max_finite_, magic_factor_;
};

// One chain round(acc + a * b) of floats, whose products are exact in double.
class FloatChain {
 public:
  static bool covers(const Format& format) {
    return !format.is_fp64() && FastRound::covers(format);
  }
  // Throws: std::logic_error for a format that is not covered.
  explicit FloatChain(const Format& format) : round_(format), is_fp32_(format.is_fp32()) {}

  // `events` may be null.
  LOCKSTEP_HOST_DEVICE double step(double acc, float a, float b, uint8_t* events) const {
    if (events != nullptr) return round_.step(acc, a, b, *events);
    if (is_fp32_) return canonical_nan(std::fma(a, b, static_cast<float>(acc)));
    return round_.step(acc, a, b);
  }

 private:
  FastRound round_;
  bool is_fp32_;  // one std::fma does the whole step
};

}  // namespace lockstep
