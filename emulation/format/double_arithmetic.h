// IEEE arithmetic on doubles that also works in constant expressions, where compilers refuse
// operations that make a NaN or divide by zero. Also results rounded to odd: rounding these again
// to fewer bits equals one rounding of the exact result. Knows nothing of formats.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace lockstep {
namespace double_arithmetic {

inline constexpr double kQuietNan = std::numeric_limits<double>::quiet_NaN();

constexpr bool is_nan(double x) {
  return x != x;
}
constexpr bool is_finite(double x) {
  constexpr uint64_t kExponentField = uint64_t{0x7ff} << 52;
  return (std::bit_cast<uint64_t>(x) & kExponentField) != kExponentField;
}
constexpr bool sign_bit(double x) {
  return std::bit_cast<uint64_t>(x) >> 63 != 0;
}

constexpr double add(double x, double y) {
  const bool invalid = !is_finite(x) && !is_finite(y) && x != y;
  if (std::is_constant_evaluated() && invalid) return kQuietNan;
  return x + y;
}

constexpr double multiply(double x, double y) {
  const bool invalid = (x == 0 && !is_finite(y)) || (y == 0 && !is_finite(x));
  if (std::is_constant_evaluated() && invalid) return kQuietNan;
  return x * y;
}

constexpr double divide(double x, double y) {
  if (std::is_constant_evaluated()) {
    if (is_nan(x) || is_nan(y)) return kQuietNan;
    if (y == 0) {
      if (x == 0) return kQuietNan;
      const double infinity = std::numeric_limits<double>::infinity();
      return sign_bit(x) != sign_bit(y) ? -infinity : infinity;
    }
    if (!is_finite(x) && !is_finite(y)) return kQuietNan;
  }
  return x / y;
}

}  // namespace double_arithmetic

// x + y rounded to odd in double: the exact sum if that is a double, otherwise the neighbour with
// an odd last bit. Rounding this to any format with p <= 51 equals rounding the exact sum once.
// Source: Boldo & Melquiond, IEEE TC 57(4), 2008.
constexpr double add_round_to_odd(double x, double y) {
  using namespace double_arithmetic;
  const double sum = add(x, y);
  if (!is_finite(sum)) return sum;
  // Knuth's two-sum: sum + error is the exact x + y.
  const double x_part = sum - y, y_part = sum - x_part;
  const double error = (x - x_part) + (y - y_part);
  const uint64_t bits = std::bit_cast<uint64_t>(sum);
  if (error == 0 || is_nan(error) || (bits & 1) != 0) return sum;
  // The exact sum lies between `sum`, even, and its neighbour on the error's side, which is odd.
  const bool outward = (error > 0) == (sum > 0);
  return std::bit_cast<double>(outward ? bits + 1 : bits - 1);
}

// sqrt(x) rounded to odd in 33 bits, so that rounding it to p <= 31 bits equals rounding the exact
// root once. NaN below zero; zeros keep their sign. Requires: x not a subnormal double.
constexpr double sqrt_round_to_odd(double x) {
  if (x < 0) return double_arithmetic::kQuietNan;
  if (x == 0 || !double_arithmetic::is_finite(x)) return x;
  constexpr int kFractionBits = 52, kBias = 1023;
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  uint64_t square = (bits & ((uint64_t{1} << kFractionBits) - 1)) | uint64_t{1} << kFractionBits;
  int exponent = static_cast<int>(bits >> kFractionBits) - kBias - kFractionBits;
  // x = square * 2^exponent, with an even exponent and a square of 63 or 64 bits.
  const int up = exponent % 2 == 0 ? 10 : 11;
  square <<= up;
  exponent -= up;
  // The root digit by digit: `rest` is the rest of the square, `twice_root` is aligned to it.
  uint64_t rest = square, twice_root = 0;
  for (uint64_t digit = uint64_t{1} << 62; digit != 0; digit >>= 2) {
    const uint64_t trial = twice_root + digit;
    twice_root >>= 1;
    if (rest < trial) continue;
    rest -= trial;
    twice_root += digit;
  }
  const uint64_t root_and_sticky = twice_root << 1 | static_cast<uint64_t>(rest != 0);
  const uint64_t scale = static_cast<uint64_t>(exponent / 2 - 1 + kBias) << kFractionBits;
  return static_cast<double>(root_and_sticky) * std::bit_cast<double>(scale);
}

}  // namespace lockstep
