// Exact arithmetic, for tests and proofs.
// Numbers with unlimited significands (Boost.Multiprecision integers times a power of two) and the
// rounding of such a number to a format, directly from the definition: find the two neighbours,
// compare distances exactly, apply the mode. Slow and simple.
#pragma once

#include <boost/multiprecision/cpp_int.hpp>
#include <span>
#include <vector>

#include "emulation/format/format.h"
#include "emulation/format/rounding.h"

namespace lockstep {

// significand * 2^exponent, the significand any integer.
class Exact {
 public:
  using Integer = boost::multiprecision::cpp_int;

  Exact() = default;
  explicit Exact(double x);  // Requires: x finite
  Exact(Integer significand, int exponent)
      : significand_(std::move(significand)), exponent_(exponent) {}

  Exact operator-() const { return {-significand_, exponent_}; }
  Exact operator+(const Exact& other) const;
  Exact operator-(const Exact& other) const { return *this + -other; }
  Exact operator*(const Exact& other) const;
  int sign() const { return significand_.sign(); }
  Exact magnitude() const { return {abs(significand_), exponent_}; }
  bool operator==(const Exact& other) const { return (*this - other).sign() == 0; }
  bool operator<(const Exact& other) const { return (*this - other).sign() < 0; }

  // floor(log2 |x|). Requires: x != 0.
  int binade() const;
  // floor(|x| / 2^q); *rest is the remainder.
  Integer floor_quotient(int q, Exact* rest) const;

 private:
  Integer significand_ = 0;
  int exponent_ = 0;
};

// Where |x| lies between its two neighbours in the format, found once for all modes and both signs.
class OraclePlace {
 public:
  // Requires: x != 0.
  OraclePlace(const Exact& x, const Format& format);
  // |x|, or -|x| if `negative`, rounded once. Requires: a deterministic rounding.
  double round(Rounding rounding, bool negative) const;

 private:
  enum class Half { kExact, kBelow, kTie, kAbove };
  struct Neighbour {
    double value;
    bool overflows;
  };
  Neighbour neighbour(const Exact::Integer& n, int q) const;
  double beyond_range(bool negative, Rounding rounding) const;

  const Format& format_;
  Half half_ = Half::kExact;
  bool odd_ = false;          // the last bit of low_
  Neighbour low_{}, high_{};  // |x| in [low, high); high_ is not set if |x| is exact
};

// x rounded once. An exact zero gives +0. Requires: a deterministic rounding.
double oracle_round(const Exact& x, const Format& format, Rounding rounding);
// As above for any double: signed zeros, infinities and NaN included.
double oracle_round(double x, const Format& format, Rounding rounding);
// The probability that stochastic rounding takes the neighbour farther from zero, as a double
// (exact for distances of at most 53 bits).
double oracle_probability_up(double x, const Format& format);

// The chain acc = round(acc + a[k] * b[k]), k ascending from acc = start, each product and sum
// exact, one rounding to nearest even per step. Infinities and NaN behave as in IEEE arithmetic.
double oracle_dot(std::span<const double> a, std::span<const double> b, double start,
                  const Format& accumulator);

// All finite values >= 0, ascending, from the definition of the fields. Requires: storage of at
// most 20 bits.
std::vector<double> nonnegative_values(const Format& format);

}  // namespace lockstep
