// Tests that scalar types compute the exactly rounded result: against exact arithmetic for every
// pair of codes of 8 bits or fewer, against the machine for FP32's widths, and by hand where a
// second rounding would change the result.
#include <doctest/doctest.h>

#include <bit>
#include <boost/multiprecision/cpp_int.hpp>
#include <cmath>
#include <limits>

#include "emulation/format/oracle.h"
#include "emulation/format/rounding.h"
#include "src/core/random.h"
#include "tests/emulation/number/number_types.h"

using namespace lockstep;

namespace {

using Integer = Exact::Integer;

constexpr uint32_t kRandomPairs = 100000;

// x = significand * 2^exponent. Requires: x finite.
Integer significand_of(double x, int* exponent) {
  constexpr int kDoublePrecision = 53;
  const double fraction = std::frexp(x, exponent);
  *exponent -= kDoublePrecision;
  return static_cast<int64_t>(std::ldexp(fraction, kDoublePrecision));
}

// More bits than any midpoint has, and a last bit that is set if the number is inexact. Such a
// number is on the same side of every midpoint as the exact one.
constexpr unsigned kExtraBits = 120;

Exact quotient(double x, double y) {
  int x_exponent = 0, y_exponent = 0;
  const Integer numerator = significand_of(std::abs(x), &x_exponent) << kExtraBits;
  const Integer denominator = significand_of(std::abs(y), &y_exponent);
  const Integer whole = numerator / denominator;
  const Integer last = whole * denominator == numerator ? 0 : 1;
  const Exact magnitude((whole << 1) + last,
                        x_exponent - y_exponent - static_cast<int>(kExtraBits) - 1);
  return std::signbit(x) != std::signbit(y) ? -magnitude : magnitude;
}

Exact square_root(double x) {
  int exponent = 0;
  Integer square = significand_of(x, &exponent) << kExtraBits;
  exponent -= static_cast<int>(kExtraBits);
  if (exponent % 2 != 0) {
    square <<= 1;
    --exponent;
  }
  const Integer root = sqrt(square);
  const Integer last = root * root == square ? 0 : 1;
  return {(root << 1) + last, exponent / 2 - 1};
}

// The exact result rounded once. If an operand or the result is infinite, NaN or zero: the result
// of IEEE arithmetic on doubles, which is exact there.
template <typename T>
uint32_t expected(double ieee_result, bool finite, const Exact& exact, const Format& format) {
  double result = round_to_format(ieee_result, format, Rounding::kNearestEven);
  if (finite && exact.sign() != 0) {
    result = oracle_round(exact, format, Rounding::kNearestEven);
    if (result == 0) result = round_to_format(exact.sign() * 0.0, format, Rounding::kNearestEven);
  }
  return code_of<T>(result, format);
}

// The number of wrong results among x + y, x - y, x * y, x / y.
template <typename T>
int wrong_results(T x, T y, const Format& format) {
  const auto a = static_cast<double>(x), b = static_cast<double>(y);
  const bool finite = std::isfinite(a) && std::isfinite(b);
  const Exact exact_a = finite ? Exact(a) : Exact(), exact_b = finite ? Exact(b) : Exact();
  const bool divides = finite && b != 0;
  return ((x + y).to_bits() != expected<T>(a + b, finite, exact_a + exact_b, format)) +
         ((x - y).to_bits() != expected<T>(a - b, finite, exact_a - exact_b, format)) +
         ((x * y).to_bits() != expected<T>(a * b, finite, exact_a * exact_b, format)) +
         ((x / y).to_bits() !=
          expected<T>(a / b, divides, divides ? quotient(a, b) : Exact(), format));
}

template <typename T>
int wrong_fma(T x, T y, T z, const Format& format) {
  const auto a = static_cast<double>(x), b = static_cast<double>(y), c = static_cast<double>(z);
  const bool finite = std::isfinite(a) && std::isfinite(b) && std::isfinite(c);
  const Exact exact = finite ? Exact(a) * Exact(b) + Exact(c) : Exact();
  return fma(x, y, z).to_bits() != expected<T>(std::fma(a, b, c), finite, exact, format);
}

// Random codes, half of them with nearly equal exponents so that sums cancel and tie.
template <typename T>
struct RandomCodes {
  const RandomStream& random;
  T operator()(uint32_t i, uint32_t which) const {
    constexpr uint32_t kCodes = NamedType<T>::code_count();
    const uint32_t code = random.bits(4 * uint64_t{i} + which) % kCodes;
    if (i % 2 == 0 || which == 0) return T::from_bits(code);
    constexpr uint32_t kNear = 4 * T::kFormat.min_normal_code();  // four binades
    const uint32_t base = random.bits(4 * uint64_t{i}) % kCodes;
    return T::from_bits((base ^ (code & T::kFormat.sign_code())) + code % kNear);
  }
};

}  // namespace

TEST_CASE("scalar types: + - * / of every pair of 8 bits or fewer are exact results rounded once") {
  for_each_type(kAllTypes, [](const auto& type) {
    using T = typename std::decay_t<decltype(type)>::Type;
    if constexpr (T::kFormat.storage_bits() <= 8) {
      const Format& format = type.format();
      CAPTURE(format.name);
      uint64_t wrong = 0;
      for (uint32_t i = 0; i < type.code_count(); ++i) {
        for (uint32_t j = 0; j < type.code_count(); ++j) {
          wrong += wrong_results(T::from_bits(i), T::from_bits(j), format);
        }
      }
      CHECK(wrong == 0);
    }
  });
}

TEST_CASE("scalar types: + - * / and fma of random operands are exact results rounded once") {
  for_each_type(kAllTypes, [](const auto& type) {
    using T = typename std::decay_t<decltype(type)>::Type;
    const Format& format = type.format();
    CAPTURE(format.name);
    const RandomStream stream(11, RandomPurpose::kTest, 2);
    const RandomCodes<T> random{stream};
    uint64_t wrong = 0;
    const bool every_pair_done = T::kFormat.storage_bits() <= 8;
    for (uint32_t i = 0; i < kRandomPairs; ++i) {
      const T x = random(i, 0), y = random(i, 1), z = random(i, 2);
      if (!every_pair_done) wrong += wrong_results(x, y, format);
      wrong += wrong_fma(x, y, z, format);
      if (i % 4 != 0) continue;
      // An addend next to the product: the sum cancels.
      const T product = x * y;
      wrong += wrong_fma(x, y, -product, format);
      wrong += wrong_fma(x, y, nextafter(-product, z), format);
    }
    CHECK(wrong == 0);
  });
}

TEST_CASE("scalar types: the square root of every code is the exact one rounded once") {
  for_each_type(kAllTypes, [](const auto& type) {
    using T = typename std::decay_t<decltype(type)>::Type;
    const Format& format = type.format();
    CAPTURE(format.name);
    uint64_t wrong = 0;
    for (uint32_t code = 0; code<type.code_count(); code += T::kFormat.storage_bits()> 16 ? 7 : 1) {
      const T x = T::from_bits(code);
      const auto value = static_cast<double>(x);
      const bool has_root = std::isfinite(value) && value > 0;
      wrong += sqrt(x).to_bits() != expected<T>(std::sqrt(value), has_root,
                                                has_root ? square_root(value) : Exact(), format);
    }
    CHECK(wrong == 0);
  });
}

TEST_CASE("scalar types: with FP32's widths, results are those of the machine's float") {
  using T = ieee<8, 23>;
  const RandomStream random(13, RandomPurpose::kTest, 3);
  const auto same = [](T x, float y) {
    return std::isnan(y) ? isnan(x) : x.to_bits() == std::bit_cast<uint32_t>(y);
  };
  uint64_t wrong = 0;
  for (uint32_t i = 0; i < 3 * kRandomPairs; ++i) {
    const uint32_t a_bits = random.bits(4 * uint64_t{i});
    // A third anywhere, a third in nearby binades, a third that differs in a few last bits.
    constexpr uint32_t kNearMask[] = {0xffffffff, 0x81ffffff, 0x8000003f};
    const uint32_t b_bits = a_bits ^ (random.bits(4 * uint64_t{i} + 1) & kNearMask[i % 3]);
    const float a = std::bit_cast<float>(a_bits), b = std::bit_cast<float>(b_bits);
    const T x = T::from_bits(a_bits), y = T::from_bits(b_bits);
    wrong += !same(x + y, a + b) || !same(x - y, a - b) || !same(x * y, a * b);
    wrong += !same(x / y, a / b) || !same(sqrt(x), std::sqrt(a));
    const float c = -(a * b) * (i % 2 == 0 ? 1.0f : 0x1p-30f);
    wrong += !same(fma(x, y, T(c)), std::fma(a, b, c));
    wrong += (x < y) != (a < b) || (x == y) != (a == b) || (x >= y) != (a >= b);
  }
  CHECK(wrong == 0);
}

TEST_CASE("scalar types: fma where an intermediate rounding would change the result") {
  SUBCASE("FP16 through FP32: 1 + 2^-10 + (2^-11 - 2^-31) is below a tie, FP32 drops the 2^-31") {
    const fp16 a((1 + 0x1p-10) * 0x1p-5), b((1 - 0x1p-10) * 0x1p-6), c(1 + 0x1p-10);
    CHECK(fma(a, b, c) == c);
    const float rounded =
        std::fma(static_cast<float>(a), static_cast<float>(b), static_cast<float>(c));
    CHECK(fp16(rounded) == nextafter(c, fp16(2)));  // the tie, to even: one ulp too high
  }
  SUBCASE("BF16 through FP64: 7/4 * 37/64 = 259/256 is a tie, FP64 drops the addend -2^-100") {
    const bf16 a(7.0 / 4), b(37.0 / 64), c(-0x1p-100);
    CHECK(fma(a, b, c) == bf16(258.0 / 256));
    const double rounded =
        std::fma(static_cast<double>(a), static_cast<double>(b), static_cast<double>(c));
    CHECK(bf16(rounded) == bf16(260.0 / 256));
  }
  SUBCASE("FP16, product rounded before the sum: 300 * 300 overflows, 300 * 300 - 60000 does not") {
    CHECK(fma(fp16(300), fp16(300), fp16(-60000)) == fp16(30000));
    CHECK(isinf(fp16(300) * fp16(300) + fp16(-60000)));
  }
}
