// Tests that scalar types hold the numbers of their format: parameters, codes, rounding, limits and
// neighbours against the table and the definition of rounding. Arithmetic:
// test_number_arithmetic.cc.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <sstream>
#include <unordered_set>
#include <vector>

#include "emulation/format/oracle.h"
#include "emulation/format/rounding.h"
#include "emulation/number/number_fmt.h"
#include "src/core/random.h"
#include "tests/emulation/number/number_types.h"

using namespace lockstep;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

constexpr Rounding kDeterministic[] = {Rounding::kNearestEven, Rounding::kNearestAway,
                                       Rounding::kTowardZero,  Rounding::kUp,
                                       Rounding::kDown,        Rounding::kOdd};

bool same_number(double x, double y) {
  return std::bit_cast<uint64_t>(x) == std::bit_cast<uint64_t>(y) ||
         (std::isnan(x) && std::isnan(y));
}

// The points where a rounding can go wrong: every value >= 0, every midpoint, their neighbours
// among doubles, and numbers beyond both ends.
std::vector<double> critical_points(const Format& format) {
  std::vector<double> points;
  std::vector<double> values = nonnegative_values(format);
  const double beyond = 2 * values.back() - values[values.size() - 2];  // the next, if it existed
  values.insert(values.end(), {beyond, 2 * beyond});
  for (size_t i = 0; i + 1 < values.size(); ++i) {
    for (const double x : {values[i], (values[i] + values[i + 1]) / 2}) {
      points.insert(points.end(), {x, std::nextafter(x, 0), std::nextafter(x, kInfinity)});
    }
  }
  points.insert(points.end(), {0x1p-1074, 0x1p-1022, 0x1p-200, 1e300, kInfinity, std::nan("")});
  return points;
}

}  // namespace

// Compile-time test: every operation in a constant expression.
static_assert(std::is_trivial_v<fp16> && sizeof(fp16) == 2 && sizeof(fp8_e4m3) == 1);
static_assert(sizeof(fp6_e3m2) == 1 && sizeof(fp4_e2m1) == 1 && sizeof(tf32) == 4);
static_assert(fp16(0.1).to_bits() == 0x2e66 && fp16(0.1) == fp16::from_bits(0x2e66));
static_assert(fp16(1) + fp16(0x1p-11) == fp16(1) && fp16(3) / fp16(-2) == fp16(-1.5));
static_assert(fp16(300) * fp16(300) == std::numeric_limits<fp16>::infinity());
static_assert(isnan(fp16(0) / fp16(0)) && isinf(fp16(1) / fp16(0)) && signbit(-fp16(0)));
static_assert(isnan(std::numeric_limits<fp16>::infinity() - std::numeric_limits<fp16>::infinity()));
static_assert(isnan(std::numeric_limits<fp16>::infinity() * fp16(0)));
static_assert(fma(fp16(3), fp16(5), fp16(-15)) == fp16(0) && sqrt(bf16(9)) == bf16(3));
static_assert(fp16::round(0.1, Rounding::kUp) == nextafter(fp16(0.1), fp16(1)));
static_assert(fp8_e4m3(464.0) == fp8_e4m3(448) && isnan(fp8_e4m3(465.0)));
static_assert(fp4_e2m1(100) == fp4_e2m1(6) && fp8_e4m3fnuz(-0.0).to_bits() == 0);
static_assert((fp16(1) <=> fp16(2)) == std::partial_ordering::less && fp16(0) == fp16(-0.0));
static_assert(static_cast<int>(fp16(-7.9)) == -7 && static_cast<float>(tf32(0.5f)) == 0.5f);

TEST_CASE("scalar types: the constants of a type are those of its row") {
  const auto check = [](const NumberFormat& constants, const Format& row) {
    CAPTURE(row.name);
    CHECK(constants.precision == row.precision);
    CHECK(constants.emin == row.emin);
    CHECK(constants.emax() == row.emax);
    CHECK(constants.exponent_bits == row.exponent_bits);
    CHECK(constants.storage_bits() == row.storage_bits());
    CHECK(constants.has_infinity() == row.has_infinity);
    CHECK(constants.has_nan() == row.has_nan);
    CHECK(constants.has_negative_zero() == row.has_negative_zero);
    CHECK(constants.overflow == row.overflow);
    CHECK(constants.subnormals == row.subnormals);
  };
  for_each_type(kAllTypes, [&](const auto& type) {
    check(std::decay_t<decltype(type)>::Type::kFormat, type.format());
  });
}

TEST_CASE("scalar types: every code has the value of the format, and every value its code") {
  for_each_type(kAllTypes, [](const auto& type) {
    using T = typename std::decay_t<decltype(type)>::Type;
    const Format& format = type.format();
    CAPTURE(format.name);
    size_t wrong_value = 0, wrong_code = 0;
    for (uint32_t code = 0; code < type.code_count(); ++code) {
      const T x = T::from_bits(code);
      const double value = decode(code, format);
      wrong_value += !same_number(static_cast<double>(x), value);
      wrong_value += !same_number(static_cast<float>(x), value);
      wrong_code += x.to_bits() != code;
      wrong_code += isnan(x) != std::isnan(value) || isinf(x) != std::isinf(value);
      // The value gives the same code, except for NaNs, flushed numbers and unused infinities.
      if (is_representable(value, format)) {
        wrong_code += T(value).to_bits() != (std::isnan(value)      ? encode(std::nan(""), format)
                                             : std::abs(value) == 0 ? encode(value, format)
                                                                    : code);
      }
    }
    CHECK(wrong_value == 0);
    CHECK(wrong_code == 0);
  });
}

TEST_CASE("scalar types: rounding is that of round_to_format, in every mode") {
  for_each_type(kAllTypes, [](const auto& type) {
    using T = typename std::decay_t<decltype(type)>::Type;
    const Format& format = type.format();
    CAPTURE(format.name);
    size_t count = 0, wrong = 0;
    for (const double point : critical_points(format)) {
      for (const double x : {point, -point}) {
        for (const Rounding rounding : kDeterministic) {
          const double expected = round_to_format(x, format, rounding);
          wrong += T::round(x, rounding).to_bits() != code_of<T>(expected, format);
          ++count;
        }
        wrong += T(x).to_bits() != T::round(x, Rounding::kNearestEven).to_bits();
        wrong += T(static_cast<float>(x)).to_bits() != T(double{static_cast<float>(x)}).to_bits();
        for (const uint32_t random : {0u, 1u, 0x7fffffffu, 0x80000000u, 0xffffffffu}) {
          const double expected = round_to_format(x, format, Rounding::kStochastic, random);
          wrong +=
              T::round(x, Rounding::kStochastic, random).to_bits() != code_of<T>(expected, format);
        }
      }
    }
    CHECK(wrong == 0);
    CHECK(count >= 6 * 6 * nonnegative_values(format).size());
  });
}

TEST_CASE("scalar types: with FP32's widths, doubles round as with round_to_format") {
  using T = ieee<8, 23>;
  const Format& format = find_format("fp32");
  const RandomStream stream(5, RandomPurpose::kTest, 4);
  constexpr int kCount = 20000, kDroppedBits = 52 - 23, kRandomBits = 32;
  int wrong = 0;
  for (int i = 0; i < kCount; ++i) {
    const uint64_t bits = uint64_t{stream.bits(2 * i)} << 32 | stream.bits(2 * i + 1);
    // Exponents in FP32's range and beyond both ends; every fourth number is a tie.
    const double significand = std::bit_cast<double>(bits >> 12 | uint64_t{1023} << 52);
    const double tie = std::trunc(std::ldexp(significand, 23)) + 0.5;
    const int exponent = static_cast<int>(bits % 300) - 160;
    const double x =
        i % 4 == 0 ? std::ldexp(tie, exponent - 23) : std::ldexp(significand, exponent);
    for (const Rounding rounding : kDeterministic) {
      wrong += T::round(x, rounding).to_bits() !=
               code_of<T>(round_to_format(x, format, rounding), format);
    }
    wrong += T(x).to_bits() != std::bit_cast<uint32_t>(static_cast<float>(x));
    // Random bits around the dropped part of a normal number: up below it, otherwise down.
    const uint64_t dropped = std::bit_cast<uint64_t>(x) & ((uint64_t{1} << kDroppedBits) - 1);
    const auto fraction = static_cast<uint32_t>(dropped << (kRandomBits - kDroppedBits));
    for (const uint32_t random : {fraction - 1, fraction, fraction + 1}) {
      wrong += T::round(x, Rounding::kStochastic, random).to_bits() !=
               code_of<T>(round_to_format(x, format, Rounding::kStochastic, random), format);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("scalar types: integers are rounded once") {
  const RandomStream random(7, RandomPurpose::kTest, 1);
  for_each_type(kAllTypes, [&](const auto& type) {
    using T = typename std::decay_t<decltype(type)>::Type;
    const Format& format = type.format();
    CAPTURE(format.name);
    const auto expected = [&](const Exact::Integer& n) {
      return code_of<T>(round_to_format(oracle_round(Exact(n, 0), format, Rounding::kNearestEven),
                                        format, Rounding::kNearestEven),
                        format);
    };
    constexpr int kCount = 2000;
    int wrong = 0;
    for (int i = 0; i < kCount; ++i) {
      const uint64_t bits = uint64_t{random.bits(2 * i)} << 32 | random.bits(2 * i + 1);
      const uint64_t n = bits >> (i % 64);
      wrong += T(n).to_bits() != expected(n);
      wrong += T(static_cast<int64_t>(n)).to_bits() != expected(static_cast<int64_t>(n));
      // Next to a midpoint of FP32 and narrower formats, with a bit that doubles drop.
      const uint64_t near_midpoint = (n | uint64_t{1} << 63) >> 60 << 60 | uint64_t{1} << 59 | 1;
      wrong += T(near_midpoint).to_bits() != expected(near_midpoint);
    }
    CHECK(wrong == 0);
    CHECK(T(std::numeric_limits<int64_t>::min()).to_bits() ==
          expected(std::numeric_limits<int64_t>::min()));
    CHECK(T(true) == T(1.0));
  });
  // 2^63 + 2^55 + 1 is above a midpoint of BF16; as a double it would be that midpoint.
  CHECK(bf16((uint64_t{1} << 63) + (uint64_t{1} << 55) + 1) == bf16(0x1.02p63));
}

namespace {

// numeric_limits as plain numbers, so that one function checks all types.
struct Limits {
  int digits, digits10, max_digits10, min_exponent, min_exponent10, max_exponent, max_exponent10;
  bool has_infinity, has_quiet_nan, is_iec559, has_subnormals;
  double max, lowest, min, denorm_min, epsilon, round_error, infinity, quiet_nan;
};

template <typename T>
Limits limits_of() {
  using L = std::numeric_limits<T>;
  const auto value = [](T x) { return static_cast<double>(x); };
  return {L::digits,
          L::digits10,
          L::max_digits10,
          L::min_exponent,
          L::min_exponent10,
          L::max_exponent,
          L::max_exponent10,
          L::has_infinity,
          L::has_quiet_NaN,
          L::is_iec559,
          L::has_denorm == std::denorm_present,
          value(L::max()),
          value(L::lowest()),
          value(L::min()),
          value(L::denorm_min()),
          value(L::epsilon()),
          value(L::round_error()),
          value(L::infinity()),
          value(L::quiet_NaN())};
}

void check_limits(const Limits& limits, const Format& f) {
  CAPTURE(f.name);
  CHECK(limits.digits == f.precision);
  CHECK(limits.digits10 == static_cast<int>(std::floor((f.precision - 1) * std::log10(2))));
  CHECK(limits.max_digits10 == static_cast<int>(std::ceil(1 + f.precision * std::log10(2))));
  CHECK(limits.min_exponent == f.emin + 1);
  CHECK(limits.max_exponent == f.emax + 1);
  CHECK(limits.min_exponent10 == static_cast<int>(std::ceil(std::log10(f.min_normal()))));
  CHECK(limits.max_exponent10 == static_cast<int>(std::floor(std::log10(f.max_finite))));
  CHECK(limits.has_infinity == f.has_infinity);
  CHECK(limits.has_quiet_nan == f.has_nan);
  CHECK(limits.is_iec559 == f.is_ieee_like());
  CHECK(limits.has_subnormals == f.has_subnormals());
  CHECK(limits.max == f.max_finite);
  CHECK(limits.lowest == -f.max_finite);
  CHECK(limits.min == f.min_normal());
  CHECK(limits.denorm_min == f.min_subnormal());
  const bool epsilon_is_flushed = f.machine_epsilon() < f.min_subnormal();
  CHECK(limits.epsilon == (epsilon_is_flushed ? 0 : f.machine_epsilon()));
  CHECK(limits.round_error == 0.5);
  CHECK(std::isinf(limits.infinity) == f.has_infinity);
  CHECK(std::isnan(limits.quiet_nan) == f.has_nan);
}

}  // namespace

TEST_CASE("scalar types: numeric_limits are those of the row") {
  for_each_type(kAllTypes, [](const auto& type) {
    check_limits(limits_of<typename std::decay_t<decltype(type)>::Type>(), type.format());
  });
  using Wide = std::numeric_limits<ieee<8, 23>>;
  using Float = std::numeric_limits<float>;
  CHECK(Wide::digits10 == Float::digits10);
  CHECK(Wide::max_digits10 == Float::max_digits10);
  CHECK(Wide::min_exponent == Float::min_exponent);
  CHECK(Wide::min_exponent10 == Float::min_exponent10);
  CHECK(Wide::max_exponent == Float::max_exponent);
  CHECK(Wide::max_exponent10 == Float::max_exponent10);
  CHECK(static_cast<float>(Wide::epsilon()) == Float::epsilon());
}

TEST_CASE("scalar types: neighbours walk through all values") {
  for_each_type(kAllTypes, [](const auto& type) {
    using T = typename std::decay_t<decltype(type)>::Type;
    const Format& format = type.format();
    CAPTURE(format.name);
    std::vector<double> values = nonnegative_values(format);
    std::erase_if(values, [&](double x) { return !is_representable(x, format); });
    const T largest = std::numeric_limits<T>::max();
    size_t wrong = 0;
    for (size_t i = 0; i + 1 < values.size(); ++i) {
      const T x(values[i]), next(values[i + 1]);
      wrong += nextafter(x, largest).to_bits() != next.to_bits();
      wrong += nextafter(next, -largest).to_bits() != x.to_bits();
      wrong += nextafter(-x, -largest).to_bits() != (-next).to_bits();
      wrong += nextafter(-next, largest).to_bits() != (-x).to_bits();
      wrong += !(x < next) || !(-next < -x) || x == next || !(next >= x);
    }
    CHECK(wrong == 0);
    CHECK(nextafter(largest, largest) == largest);
    if (format.has_nan) CHECK(isnan(nextafter(std::numeric_limits<T>::quiet_NaN(), largest)));
    if (format.has_infinity && format.overflow == OverflowRule::kInfinity) {
      const T infinity = std::numeric_limits<T>::infinity();
      CHECK(nextafter(largest, infinity) == infinity);
      CHECK(nextafter(infinity, T(0)) == largest);
    }
  });
}

TEST_CASE("scalar types: signs, NaN and equality") {
  for_each_type(kNamedTypes, [](const auto& type) {
    using T = typename std::decay_t<decltype(type)>::Type;
    const Format& format = type.format();
    CAPTURE(format.name);
    CHECK(T(-0.0) == T(0.0));
    CHECK(signbit(T(-0.0)) == format.has_negative_zero);
    CHECK(abs(T(-1.5)) == T(1.5));
    CHECK(copysign(T(1.5), T(-2)) == T(-1.5));
    CHECK(copysign(T(-1.5), T(-2)) == T(-1.5));
    CHECK(+T(-1.5) == -T(1.5));
    CHECK(std::hash<T>()(T(0.0)) == std::hash<T>()(T(-0.0)));
    CHECK(std::hash<T>()(T(1.0)) != std::hash<T>()(T(1.5)));
    if (!format.has_nan) {
      CHECK(T(std::nan("")) == std::numeric_limits<T>::max());
      return;
    }
    const T nan(std::nan(""));
    CHECK((isnan(nan) && isnan(-nan) && isnan(abs(nan)) && !isfinite(nan)));
    CHECK(nan != nan);
    CHECK(!(nan < T(1)));
    CHECK(!(nan >= T(1)));
    CHECK((nan <=> T(1)) == std::partial_ordering::unordered);
    CHECK(T(-std::nan("")).to_bits() == nan.to_bits());  // the one positive NaN
  });
  const std::unordered_set<fp16> set = {fp16(0.0), fp16(-0.0), fp16(1), fp16(1.0001)};
  CHECK(set.size() == 2);
}

TEST_CASE("scalar types: conversion among types rounds once, and the layout of TF32 is a float's") {
  CHECK(bf16(fp16(0x1.018p0)) == bf16(0x1.02p0));
  CHECK(isnan(fp8_e4m3(fp16(1000))));
  CHECK(fp4_e2m1(fp8_e5m2(1.25)) == fp4_e2m1(1));  // a tie, to even
  CHECK(std::bit_cast<uint32_t>(tf32(0.1)) ==
        std::bit_cast<uint32_t>(static_cast<float>(tf32(0.1))));
  CHECK(tf32(1).to_bits() == encode(1.0, find_format("tf32")));
}

TEST_CASE("scalar types: text") {
  std::ostringstream out;
  out << fp16(0.1) << ' ' << bf16(-3) << ' ' << fp8_e5m2(1e9);
  CHECK(out.str() == "0.0999756 -3 inf");
  CHECK(fmt::format("{} {:.3e} {:>6g} {:a}", fp16(0.1), bf16(1e-3), fp8_e4m3(448), fp16(0.1)) ==
        "0.099975586 9.995e-04    448 0x1.998p-4");
}
