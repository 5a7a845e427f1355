// Exact numbers and their rounding by definition. Shares no arithmetic with emulation/rounding.cc.
#include "emulation/oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace lockstep {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kQuietNan = std::numeric_limits<double>::quiet_NaN();
constexpr int kDoublePrecision = 53;

// The spacing of the format's values around |x|, as an exponent of two.
int spacing_exponent(const Exact& x, const Format& f) {
  const int e = x.binade();
  if (e >= f.emin) return e - f.precision + 1;
  return f.has_subnormals ? f.emin - f.precision + 1 : f.emin;
}

double beyond_range(bool negative, const Format& f, Rounding rounding) {
  bool to_infinity = false;
  switch (rounding) {
    case Rounding::kNearestEven:
    case Rounding::kNearestAway:
      to_infinity = true;
      break;
    case Rounding::kUp:
      to_infinity = !negative;
      break;
    case Rounding::kDown:
      to_infinity = negative;
      break;
    default:
      break;
  }
  const double sign = negative ? -1 : 1;
  if (!to_infinity || f.overflow == OverflowPolicy::kSaturate) return sign * f.max_finite;
  return f.overflow == OverflowPolicy::kNan ? kQuietNan : sign * kInfinity;
}

}  // namespace

Exact::Exact(double x) {
  if (!std::isfinite(x)) throw std::logic_error("Exact: not a finite number");
  int e = 0;
  const double fraction = std::frexp(x, &e);
  significand_ = static_cast<int64_t>(std::ldexp(fraction, kDoublePrecision));
  exponent_ = e - kDoublePrecision;
}

Exact Exact::operator+(const Exact& other) const {
  if (exponent_ < other.exponent_) return other + *this;
  const Integer aligned = significand_ << static_cast<unsigned>(exponent_ - other.exponent_);
  return {aligned + other.significand_, other.exponent_};
}

Exact Exact::operator*(const Exact& other) const {
  return {significand_ * other.significand_, exponent_ + other.exponent_};
}

int Exact::binade() const {
  return static_cast<int>(msb(Integer(abs(significand_)))) + exponent_;
}

Exact::Integer Exact::floor_quotient(int q, Exact* rest) const {
  const Integer value = abs(significand_);
  if (exponent_ >= q) {
    *rest = Exact();
    return value << static_cast<unsigned>(exponent_ - q);
  }
  const auto shift = static_cast<unsigned>(q - exponent_);
  const Integer quotient = value >> shift;
  *rest = Exact(value - (quotient << shift), exponent_);
  return quotient;
}

double oracle_round(const Exact& x, const Format& format, Rounding rounding) {
  if (x.sign() == 0) return 0.0;
  if (rounding == Rounding::kStochastic) throw std::logic_error("oracle_round: not deterministic");
  const bool negative = x.sign() < 0;
  const int q = spacing_exponent(x, format);
  Exact below;  // distance to the neighbour below in magnitude
  Exact::Integer n = x.floor_quotient(q, &below);
  if (below.sign() != 0) {
    const Exact above = Exact(1, q) - below;  // distance to the one above
    const bool odd = (n & 1) != 0;
    bool up = false;
    switch (rounding) {
      case Rounding::kNearestEven:
        up = above < below || (above == below && odd);
        break;
      case Rounding::kNearestAway:
        up = !(below < above);
        break;
      case Rounding::kUp:
        up = !negative;
        break;
      case Rounding::kDown:
        up = negative;
        break;
      case Rounding::kOdd:
        up = !odd;
        break;
      default:
        break;
    }
    if (up) ++n;
  }
  // Judged exactly: n * 2^q may lie beyond double's own range.
  if (Exact(format.max_finite) < Exact(n, q)) return beyond_range(negative, format, rounding);
  const double magnitude = std::ldexp(n.convert_to<double>(), q);
  return negative ? -magnitude : magnitude;
}

double oracle_round(double x, const Format& format, Rounding rounding) {
  if (std::isnan(x)) return kQuietNan;
  if (x == 0) return x;
  if (!std::isinf(x)) {
    const double rounded = oracle_round(Exact(x), format, rounding);
    return rounded == 0 ? std::copysign(0.0, x) : rounded;
  }
  if (format.has_infinity) return x;
  return format.overflow == OverflowPolicy::kNan ? kQuietNan : std::copysign(format.max_finite, x);
}

double oracle_probability_up(double x, const Format& format) {
  if (x == 0) return 0;
  const Exact exact(x);
  const int q = spacing_exponent(exact, format);
  Exact rest;
  exact.floor_quotient(q, &rest);
  Exact none;
  const Exact::Integer steps = rest.floor_quotient(q - kDoublePrecision, &none);
  return std::ldexp(steps.convert_to<double>(), -kDoublePrecision);
}

double oracle_dot(std::span<const double> a, std::span<const double> b, double start,
                  const Format& accumulator) {
  double acc = start;
  for (size_t k = 0; k < a.size(); ++k) {
    if (!std::isfinite(a[k]) || !std::isfinite(b[k]) || !std::isfinite(acc)) {
      // Only the signs of infinities and zeros matter here; a product of two finite factors is
      // replaced by its sign, so that it cannot overflow in double.
      const bool product_finite = std::isfinite(a[k]) && std::isfinite(b[k]);
      const double sum = acc + (product_finite ? std::copysign(1.0, a[k]) : a[k] * b[k]);
      acc = std::isnan(sum) ? kQuietNan : oracle_round(sum, accumulator, Rounding::kNearestEven);
      continue;
    }
    const Exact sum = Exact(acc) + Exact(a[k]) * Exact(b[k]);
    if (sum.sign() != 0) {
      const double rounded = oracle_round(sum, accumulator, Rounding::kNearestEven);
      acc = rounded == 0 ? std::copysign(0.0, sum.sign()) : rounded;
      continue;
    }
    // A zero sum is -0 only when both addends are -0 (IEEE 754-2019 §6.3).
    const bool product_zero = a[k] == 0 || b[k] == 0;
    const bool product_negative = std::signbit(a[k]) != std::signbit(b[k]);
    const bool negative = acc == 0 && std::signbit(acc) && product_zero && product_negative;
    acc = negative ? -0.0 : 0.0;
  }
  return acc;
}

std::vector<double> nonnegative_values(const Format& format) {
  constexpr int kMaxBits = 20;
  if (format.storage_bits() > kMaxBits) throw std::logic_error("nonnegative_values: too many");
  std::vector<double> values = {0.0};
  const int steps = 1 << (format.precision - 1);  // values per binade
  if (format.has_subnormals) {
    for (int n = 1; n < steps; ++n) {
      values.push_back(std::ldexp(n, format.emin - format.precision + 1));
    }
  }
  for (int e = format.emin; e <= format.emax; ++e) {
    for (int n = steps; n < 2 * steps; ++n) {
      const double value = std::ldexp(n, e - format.precision + 1);
      if (value <= format.max_finite) values.push_back(value);
    }
  }
  return values;
}

}  // namespace lockstep
