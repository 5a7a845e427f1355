// Shared by the accumulator tests: IEEE's special cases around exact rationals, and random dot
// products of storage words. Knows no accumulator's rule and shares no arithmetic with the kernels.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "emulation/format/oracle.h"
#include "src/core/random.h"

namespace lockstep {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
inline Exact power(int exponent) {
  return Exact(Exact::Integer(1), exponent);
}

// --- IEEE's special cases around exact arithmetic ---

struct Value {
  Value(double x)  // NOLINT: every double is a value
      : nan(std::isnan(x)), infinite(std::isinf(x)), negative(std::signbit(x)) {
    if (std::isfinite(x)) exact = Exact(x);
  }
  bool nan, infinite, negative;
  Exact exact;  // of finite values, signed
};

inline Value product(const Value& x, const Value& y) {
  const bool zero = (!x.infinite && x.exact.sign() == 0) || (!y.infinite && y.exact.sign() == 0);
  if (x.nan || y.nan || ((x.infinite || y.infinite) && zero)) return kNan;
  const bool negative = x.negative != y.negative;
  if (x.infinite || y.infinite) return negative ? -kInfinity : kInfinity;
  Value out = negative ? -0.0 : 0.0;
  out.exact = x.exact * y.exact;
  return out;
}

inline Value sum(const Value& x, const Value& y) {
  if (x.nan || y.nan || (x.infinite && y.infinite && x.negative != y.negative)) return kNan;
  if (x.infinite) return x;
  if (y.infinite) return y;
  Value out = 0.0;
  out.exact = x.exact + y.exact;
  const int sign = out.exact.sign();
  out.negative = sign < 0 || (sign == 0 && x.negative && y.negative);
  return out;
}

// Specials and exact zeros pass; `finite` rounds all other numbers.
template <typename Rule>
double rounded(const Value& x, Rule finite) {
  if (x.nan) return kNan;
  if (x.infinite) return x.negative ? -kInfinity : kInfinity;
  if (x.exact.sign() == 0) return x.negative ? -0.0 : 0.0;
  return finite(x.exact);
}

inline double signed_like(double magnitude, const Exact& x) {
  return x.sign() < 0 ? -magnitude : magnitude;
}

inline const Format& fp32() {
  static const Format& format = find_format("fp32");
  return format;
}

inline double nearest(const Value& x, const Format& format = fp32()) {
  return rounded(x,
                 [&](const Exact& e) { return oracle_round(e, format, Rounding::kNearestEven); });
}

// --- data ---

// The exponent fields of random storage words. kPartner: products of two such factors are near the
// lower end of FP32's range (the square root of the smallest number); kHigh: near the upper end.
enum class Range { kAny, kNearOne, kPartner, kHigh, kLow };
inline constexpr Range kRanges[] = {Range::kAny, Range::kNearOne, Range::kPartner, Range::kHigh,
                                    Range::kLow};

class Words {
 public:
  explicit Words(uint32_t index) : random_(21, RandomPurpose::kTest, index) {}

  uint32_t bits() { return random_.bits(n_++); }
  int below(int n) { return static_cast<int>(bits() % static_cast<uint32_t>(n)); }
  // True about once in n.
  bool one_in(int n) { return below(n) == 0; }

  double number(const Format& format, Range range) {
    const int fraction_bits = format.precision - 1;
    const uint32_t top = (1u << format.exponent_bits) - 1;
    const int bias = 1 - format.emin;
    uint32_t word = bits() & (~0u >> (32 - format.storage_bits()));
    if (range != Range::kAny) {
      int field = below(26);
      if (range == Range::kNearOne) field = bias - 4 + below(9);
      if (range == Range::kPartner) field = bias / 2 - 8 + below(28);
      if (range == Range::kHigh) field = bias + bias / 2 - 3 + below(7);
      field = std::clamp(field, 0, static_cast<int>(top) - 1);
      word = (word & ~(top << fraction_bits)) | static_cast<uint32_t>(field) << fraction_bits;
    }
    if (one_in(12)) word &= 1u << (format.storage_bits() - 1);  // a zero
    return decode(word, format);
  }

  // A double's range does not matter here: FP64 sums start from FP32 numbers.
  double addend(const Format& wide) {
    const Format& format = wide.is_fp64() ? fp32() : wide;
    const double special[] = {0,
                              -0.0,
                              format.max_finite,
                              -format.max_finite,
                              format.min_normal(),
                              format.min_normal() / 2,
                              -format.min_subnormal()};
    if (one_in(3)) return special[below(std::size(special))];
    return number(format, kRanges[below(std::size(kRanges))]);
  }

 private:
  RandomStream random_;
  uint64_t n_ = 0;
};

struct Case {
  std::vector<float> a, b;
  double c = 0;
};

// In every other case, neighbouring products cancel except for a few last bits.
inline Case random_case(const Format& a_format, const Format& b_format, const Format& addend,
                        int count, Words& words) {
  Case out;
  const Range range = kRanges[words.below(std::size(kRanges))];
  const bool cancels = words.one_in(2);
  for (int k = 0; k < count; ++k) {
    out.a.push_back(static_cast<float>(words.number(a_format, range)));
    out.b.push_back(static_cast<float>(words.number(b_format, range)));
    if (!cancels || k % 2 == 0) continue;
    out.a[k] = -out.a[k - 1];
    if (words.one_in(2)) out.b[k] = out.b[k - 1];
  }
  out.c = words.addend(addend);
  return out;
}

inline void check_same(double got, double want) {
  REQUIRE(std::bit_cast<uint64_t>(got) == std::bit_cast<uint64_t>(want));
}

}  // namespace lockstep
