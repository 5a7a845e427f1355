// Exact numbers and their rounding by definition. Shares no arithmetic with
// emulation/format/rounding.cc.
#include "emulation/format/oracle.h"

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
  return std::max(x.binade(), f.emin) - f.precision + 1;
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

OraclePlace::OraclePlace(const Exact& x, const Format& format) : format_(format) {
  const bool flushed = format.subnormals == SubnormalRule::kFlushIn && x.binade() < format.emin;
  if (flushed) {
    low_ = {0.0, false};
    return;
  }
  const int q = spacing_exponent(x, format);
  Exact below;  // distance to the neighbour below
  Exact::Integer n = x.floor_quotient(q, &below);
  odd_ = (n & 1) != 0;
  low_ = neighbour(n, q);
  if (below.sign() == 0) return;
  const int side = (below - (Exact(1, q) - below)).sign();  // against the distance to the one above
  half_ = side < 0 ? Half::kBelow : side == 0 ? Half::kTie : Half::kAbove;
  high_ = neighbour(n + 1, q);
}

OraclePlace::Neighbour OraclePlace::neighbour(const Exact::Integer& n, int q) const {
  const Exact value(n, q);
  // Compared exactly: n * 2^q may be beyond double's own range.
  if (Exact(format_.max_finite) < value) return {format_.max_finite, true};
  const bool subnormal = n != 0 && value.binade() < format_.emin;
  if (subnormal && !format_.has_subnormals()) return {0.0, false};
  return {std::ldexp(n.convert_to<double>(), q), false};
}

double OraclePlace::beyond_range(bool negative, Rounding rounding) const {
  const bool to_infinity =
      rounding == Rounding::kNearestEven || rounding == Rounding::kNearestAway ||
      (rounding == Rounding::kUp && !negative) || (rounding == Rounding::kDown && negative);
  const double sign = negative ? -1 : 1;
  if (!to_infinity || format_.overflow == OverflowRule::kSaturate) {
    return sign * format_.max_finite;
  }
  return format_.overflow == OverflowRule::kNan ? kQuietNan : sign * kInfinity;
}

double OraclePlace::round(Rounding rounding, bool negative) const {
  bool up = false;
  switch (rounding) {
    case Rounding::kNearestEven:
      up = half_ == Half::kAbove || (half_ == Half::kTie && odd_);
      break;
    case Rounding::kNearestAway:
      up = half_ == Half::kAbove || half_ == Half::kTie;
      break;
    case Rounding::kTowardZero:
      break;
    case Rounding::kUp:
      up = half_ != Half::kExact && !negative;
      break;
    case Rounding::kDown:
      up = half_ != Half::kExact && negative;
      break;
    case Rounding::kOdd:
      up = half_ != Half::kExact && !odd_;
      break;
    case Rounding::kStochastic:
      throw std::logic_error("OraclePlace: not deterministic");
  }
  const Neighbour& chosen = up ? high_ : low_;
  if (chosen.overflows) return beyond_range(negative, rounding);
  const bool minus = negative && (chosen.value != 0 || format_.has_negative_zero);
  return minus ? -chosen.value : chosen.value;
}

double oracle_round(const Exact& x, const Format& format, Rounding rounding) {
  if (x.sign() == 0) return 0.0;
  return OraclePlace(x, format).round(rounding, x.sign() < 0);
}

double oracle_round(double x, const Format& format, Rounding rounding) {
  if (std::isnan(x)) return kQuietNan;
  if (x == 0) return format.has_negative_zero ? x : 0.0;
  if (!std::isinf(x)) return oracle_round(Exact(x), format, rounding);
  switch (format.overflow) {
    case OverflowRule::kInfinity:
      return x;
    case OverflowRule::kSaturate:
      return std::copysign(format.max_finite, x);
    case OverflowRule::kNan:
      return kQuietNan;
  }
  return kQuietNan;
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
  if (format.has_subnormals()) {
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
