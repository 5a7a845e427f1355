// Scalar types for programs that compute in FP16, BF16, TF32, FP8, FP6 or FP4.
// Number<FORMAT> is a scalar type like float: a constant expression where float is one, stored in
// the smallest sufficient unsigned integer. It is a trivial type. Every operation rounds the exact
// result once, to nearest even; so do conversions between types and from doubles and integers.
// There is no implicit conversion. Include only this header; there is nothing to link. Requires:
// the machine rounds to nearest, as by default (std::fesetround).
// Eigen: number_eigen.h. fmt: number_fmt.h. There is no exp, log, sin, ...: no library rounds them
// correctly; compute them in double and convert. For arrays, quantize.h is faster.
//
// Why there is only one rounding (p = precision of the type, at most 24; operands have at most p
// bits, midpoints of results at most p+1):
//   x * y   2p <= 48 bits: exact in double.
//   x + y   exact in double, or |y| < 2^(p-52) |x|: then x is far nearer to the sum than any
//           midpoint is, and the double is on the same side of all midpoints.
//   x / y   for a midpoint m the difference x - m y is zero or at least 2^-(2p+1) |m y|, because
//           m y has 2p+1 bits; the error of the double, 2^-53, cannot reach or cross m.
//   sqrt, fma   rounded to odd first (double_arithmetic.h).
// All of this applies to subnormal results too: their midpoints have fewer bits.
// Source: Figueroa, When is double rounding innocuous?, SIGNUM Newsletter 30(3), 1995.
#pragma once

#include <bit>
#include <cfloat>
#include <compare>
#include <concepts>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <limits>
#include <type_traits>

#include "emulation/format/double_arithmetic.h"
#include "emulation/number/number_codec.h"
#include "emulation/number/number_format.h"

namespace lockstep {

#ifdef __FAST_MATH__
#error "emulation/number/number.h: -ffast-math changes results, but these types guarantee every bit"
#endif
static_assert(std::numeric_limits<double>::is_iec559 && FLT_EVAL_METHOD == 0,
              "doubles must be computed as IEEE doubles");

template <NumberFormat F>
class Number {
 public:
  using Codec = NumberCodec<F>;
  using Bits = std::conditional_t<F.storage_bits() <= 8, uint8_t,
                                  std::conditional_t<F.storage_bits() <= 16, uint16_t, uint32_t>>;
  static constexpr NumberFormat kFormat = F;

  Number() = default;  // as for float: indeterminate, or zero from Number{}

  // Rounds once, to nearest even. The format's overflow rule decides beyond the range. In a
  // format without NaN, a NaN becomes max_finite (number_format.h).
  template <std::floating_point T>
  requires(sizeof(T) <= sizeof(double)) constexpr explicit Number(T x)
      : Number(from_bits(Codec::round_to_nearest_even(static_cast<double>(x)))) {}
  template <std::signed_integral T>
  constexpr explicit Number(T x) : Number(from_integer(x < 0, static_cast<uint64_t>(x))) {}
  template <std::unsigned_integral T>
  constexpr explicit Number(T x) : Number(from_integer(false, static_cast<uint64_t>(x))) {}
  template <NumberFormat G>
  requires(!(G == F)) constexpr explicit Number(Number<G> x) : Number(static_cast<double>(x)) {}

  static constexpr Number round(double x, Rounding rounding, uint32_t random = 0) {
    return from_bits(Codec::round(x, rounding, random));
  }

  // The code, right-aligned, as `encode` of format.h and `lockstep round` show it.
  static constexpr Number from_bits(uint32_t code) {
    Number x;
    x.bits_ = static_cast<Bits>((code & (F.sign_code() | F.magnitude_mask())) << kAlignment);
    return x;
  }
  constexpr uint32_t to_bits() const { return uint32_t{bits_} >> kAlignment; }

  // Exact for double and float (p <= 24 and at most 8 exponent bits); truncated for integers, as
  // from a double.
  template <typename T>
  requires std::is_arithmetic_v<T>
  constexpr explicit operator T() const { return static_cast<T>(value()); }

  constexpr Number operator+() const { return *this; }
  constexpr Number operator-() const {
    const bool no_sign = !F.has_negative_zero() && (to_bits() & F.magnitude_mask()) == 0;
    return no_sign ? *this : from_bits(to_bits() ^ F.sign_code());
  }
  friend constexpr Number operator+(Number x, Number y) {
    return Number(double_arithmetic::add(x.value(), y.value()));
  }
  friend constexpr Number operator-(Number x, Number y) {
    return Number(double_arithmetic::add(x.value(), -y.value()));
  }
  friend constexpr Number operator*(Number x, Number y) {
    return Number(double_arithmetic::multiply(x.value(), y.value()));
  }
  friend constexpr Number operator/(Number x, Number y) {
    return Number(double_arithmetic::divide(x.value(), y.value()));
  }
  constexpr Number& operator+=(Number y) { return *this = *this + y; }
  constexpr Number& operator-=(Number y) { return *this = *this - y; }
  constexpr Number& operator*=(Number y) { return *this = *this * y; }
  constexpr Number& operator/=(Number y) { return *this = *this / y; }

  friend constexpr bool operator==(Number x, Number y) { return x.value() == y.value(); }
  friend constexpr std::partial_ordering operator<=>(Number x, Number y) {
    return x.value() <=> y.value();
  }

  // a * b + c, rounded once.
  friend constexpr Number fma(Number a, Number b, Number c) {
    const double product = double_arithmetic::multiply(a.value(), b.value());  // exact
    return Number(add_round_to_odd(product, c.value()));
  }
  friend constexpr Number sqrt(Number x) { return Number(sqrt_round_to_odd(x.value())); }

  friend constexpr bool isnan(Number x) { return Codec::is_nan(x.to_bits()); }
  friend constexpr bool isinf(Number x) { return Codec::is_infinity(x.to_bits()); }
  friend constexpr bool isfinite(Number x) { return !isnan(x) && !isinf(x); }
  friend constexpr bool signbit(Number x) {
    return !(isnan(x) && !F.has_negative_zero()) && (x.to_bits() & F.sign_code()) != 0;
  }
  friend constexpr Number copysign(Number x, Number y) { return signbit(x) == signbit(y) ? x : -x; }
  friend constexpr Number abs(Number x) { return signbit(x) ? -x : x; }
  // The neighbour of x toward y: y if they are equal, NaN if one of them is NaN.
  friend constexpr Number nextafter(Number x, Number y) {
    if (isnan(x) || isnan(y)) return from_bits(F.nan_code());
    if (x == y) return y;
    const bool up = x < y;
    if (x == Number{}) return from_bits(Codec::with_sign(kFirstCode, !up));
    const bool outward = up != signbit(x);
    const uint32_t magnitude = x.to_bits() & F.magnitude_mask();
    const uint32_t inward = magnitude == kFirstCode ? 0 : magnitude - 1;
    return from_bits(Codec::with_sign(outward ? magnitude + 1 : inward, signbit(x)));
  }

  template <typename Char, typename Traits>
  friend std::basic_ostream<Char, Traits>& operator<<(std::basic_ostream<Char, Traits>& out,
                                                      Number x) {
    return out << static_cast<float>(x);
  }

 private:
  constexpr double value() const { return Codec::decode(to_bits()); }

  // Formats of more than 16 bits use the top of a 32-bit word, as TF32 does in its register: an
  // array of tf32 is an array of floats.
  static constexpr int kAlignment = F.storage_bits() > 16 ? 32 - F.storage_bits() : 0;
  // The smallest positive number.
  static constexpr uint32_t kFirstCode =
      F.subnormals == SubnormalRule::kKept ? 1 : F.min_normal_code();

  static constexpr Number from_integer(bool negative, uint64_t two_complement) {
    const uint64_t magnitude = negative ? 0 - two_complement : two_complement;
    if (magnitude == 0) return Number{};
    const int zeros = std::countl_zero(magnitude);
    return from_bits(Codec::round_scaled(negative, magnitude << zeros, -zeros, 63 - zeros,
                                         Rounding::kNearestEven, 0));
  }

  Bits bits_;
};

using tf32 = Number<kTf32>;
using fp16 = Number<kFp16>;
using bf16 = Number<kBf16>;
using fp8_e4m3 = Number<kFp8E4m3>;
using fp8_e5m2 = Number<kFp8E5m2>;
using fp8_e4m3fnuz = Number<kFp8E4m3Fnuz>;
using fp8_e5m2fnuz = Number<kFp8E5m2Fnuz>;
using fp6_e3m2 = Number<kFp6E3m2>;
using fp6_e2m3 = Number<kFp6E2m3>;
using fp4_e2m1 = Number<kFp4E2m1>;

// The format e<E>m<M> by the IEEE rules.
template <int E, int M>
using ieee = Number<ieee_format(E, M)>;

// T under another overflow or subnormal rule: with_rule<fp8_e4m3, OverflowRule::kSaturate>.
template <typename T, auto rule>
using with_rule = Number<T::kFormat.with(rule)>;

}  // namespace lockstep

// Limits that a format cannot hold are zero, as for integers: infinity() and quiet_NaN() of formats
// without them, epsilon() if subnormals are flushed and 2^(1-p) is one.
template <lockstep::NumberFormat F>
class std::numeric_limits<lockstep::Number<F>> {
  using T = lockstep::Number<F>;
  static constexpr T of(uint32_t code) { return T::from_bits(code); }
  static constexpr double kMax = static_cast<double>(of(F.max_finite_code()));
  static constexpr double kMin = static_cast<double>(of(F.min_normal_code()));
  // log10(2), with more digits than p <= 24 and exponents of 8 bits need.
  static constexpr double kLog10Of2 = 0.30102999566398120;
  static constexpr int floor_log10(double x) {
    int exponent = 0;
    for (; x >= 10; x /= 10) ++exponent;
    for (; x < 1; x *= 10) --exponent;
    return exponent;
  }

 public:
  static constexpr bool is_specialized = true;
  static constexpr bool is_signed = true, is_integer = false, is_exact = false;
  static constexpr bool has_infinity = F.has_infinity();
  static constexpr bool has_quiet_NaN = F.has_nan(), has_signaling_NaN = false;
  static constexpr bool kHasSubnormals = F.subnormals == lockstep::SubnormalRule::kKept;
  static constexpr std::float_denorm_style has_denorm =
      kHasSubnormals ? std::denorm_present : std::denorm_absent;
  static constexpr bool has_denorm_loss = false;
  static constexpr std::float_round_style round_style = std::round_to_nearest;
  static constexpr bool is_iec559 = F.special_codes == lockstep::SpecialCodes::kIeee &&
                                    F.overflow == lockstep::OverflowRule::kInfinity &&
                                    kHasSubnormals;
  static constexpr bool is_bounded = true, is_modulo = false;
  static constexpr bool traps = false, tinyness_before = false;
  static constexpr int radix = 2;
  static constexpr int digits = F.precision;
  static constexpr int digits10 = static_cast<int>((F.precision - 1) * kLog10Of2);
  static constexpr int max_digits10 = static_cast<int>(F.precision * kLog10Of2) + 2;
  static constexpr int min_exponent = F.emin + 1, max_exponent = F.emax() + 1;  // of [1/2, 1)
  static constexpr int min_exponent10 = floor_log10(kMin) + (kMin == 1 ? 0 : 1);
  static constexpr int max_exponent10 = floor_log10(kMax);

  static constexpr T min() noexcept { return of(F.min_normal_code()); }
  static constexpr T max() noexcept { return of(F.max_finite_code()); }
  static constexpr T lowest() noexcept { return -max(); }
  static constexpr T epsilon() noexcept { return nextafter(T(1.0), max()) - T(1.0); }
  static constexpr T round_error() noexcept { return T(0.5); }
  static constexpr T denorm_min() noexcept { return nextafter(T{}, max()); }
  static constexpr T infinity() noexcept { return of(F.has_infinity() ? F.infinity_code() : 0); }
  static constexpr T quiet_NaN() noexcept { return of(F.has_nan() ? F.nan_code() : 0); }
  static constexpr T signaling_NaN() noexcept { return T{}; }
};

template <lockstep::NumberFormat F>
struct std::hash<lockstep::Number<F>> {
  size_t operator()(lockstep::Number<F> x) const noexcept {
    return std::hash<uint32_t>{}(x == lockstep::Number<F>{} ? 0 : x.to_bits());
  }
};
