// Tests exp, log and tanh against a wider function, their special values, and vectors against
// scalars.
#include <doctest/doctest.h>

#include <boost/multiprecision/cpp_bin_float.hpp>

#include "emulation/kernels/simd/elements/exp_log.h"
#include "emulation/kernels/simd/targets.h"
#include "emulation/math/exp_log.h"
#include "tests/emulation/kernels/kernel_test_util.h"

namespace lockstep {
namespace {

using Wide = boost::multiprecision::cpp_bin_float_50;

enum class Function { kExp, kLog, kTanh };

template <typename T>
T ours(Function f, T x) {
  if (f == Function::kExp) return lockstep_exp(x);
  return f == Function::kLog ? lockstep_log(x) : lockstep_tanh(x);
}

// The documented bound of emulation/math/exp_log.h.
constexpr double kBoundUlps = 1;

// |y - f(x)| in units in the last place of f(x), computed in 50 decimal digits.
template <typename T>
double error_ulps(Function f, T x, T y) {
  const Wide w(x);
  const Wide exact = f == Function::kExp   ? Wide(exp(w))
                     : f == Function::kLog ? Wide(log(w))
                                           : Wide(tanh(w));
  const Format& format = find_format(sizeof(T) == 4 ? "fp32" : "fp64");
  const double last_place = ulp(static_cast<double>(exact), format);
  return static_cast<double>(abs(Wide(y) - exact) / Wide(last_place));
}

// Arguments over the whole range of a function, plus the places where it is hardest.
template <typename T>
std::vector<T> arguments(Function f, size_t count) {
  const RandomStream random(3, RandomPurpose::kTest, static_cast<uint32_t>(f));
  std::vector<T> x;
  for (size_t i = 0; i < count; ++i) {
    const double u = 2 * random.uniform(3 * i) - 1, v = random.uniform(3 * i + 1);
    const int e =
        static_cast<int>(v * (sizeof(T) == 4 ? 250 : 2040)) - (sizeof(T) == 4 ? 125 : 1020);
    if (f == Function::kExp)
      x.push_back(static_cast<T>(i % 2 ? u * (sizeof(T) == 4 ? 103 : 744) : u));
    if (f == Function::kTanh) x.push_back(static_cast<T>(i % 2 ? u * 21 : std::ldexp(u, e / 8)));
    if (f == Function::kLog) x.push_back(static_cast<T>(i % 2 ? std::ldexp(1 + v, e) : 1 + u / 8));
  }
  return x;
}

template <typename T>
void check_errors(Function f, size_t count) {
  double worst = 0;
  for (const T x : arguments<T>(f, count)) {
    if (f == Function::kLog && x == 1) continue;  // log 1 = 0 has no ulp; checked by hand
    const T y = ours(f, x);
    if (std::isinf(y)) continue;  // exp at the end of the range
    worst = std::max(worst, error_ulps(f, x, y));
  }
  CAPTURE(static_cast<int>(f));
  CAPTURE(sizeof(T));
  CHECK(worst <= kBoundUlps);
  CHECK(worst > 0.4);  // the check has an effect: no function here is correctly rounded
}

template <typename T>
std::vector<T> special_arguments() {
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  std::vector<T> x = {T(0), T(-0.0), T(1), T(-1), kInfinity, -kInfinity};
  x.push_back(std::numeric_limits<T>::quiet_NaN());
  x.push_back(-std::numeric_limits<T>::quiet_NaN());
  for (const T v : {std::numeric_limits<T>::max(), std::numeric_limits<T>::min(),
                    std::numeric_limits<T>::denorm_min(), MathConstants<T>::kExpMax,
                    MathConstants<T>::kExpMin, MathConstants<T>::kTanhOne}) {
    for (const T w : {std::nextafter(v, T(0)), v, std::nextafter(v, kInfinity)}) {
      x.push_back(w);
      x.push_back(-w);
    }
  }
  return x;
}

template <typename T>
void compare_vectors() {
  using Array = void (*)(const T*, T*, int64_t);
  struct Row {
    Function function;
    Array avx2, avx512;
  };
  const Row rows[] = {{Function::kExp, avx2_exp, avx512_exp},
                      {Function::kLog, avx2_log, avx512_log},
                      {Function::kTanh, avx2_tanh, avx512_tanh}};
  for (const Row& row : rows) {
    std::vector<T> x = special_arguments<T>();
    for (const T v : arguments<T>(row.function, 20003)) x.push_back(v);
    std::vector<T> want, got(x.size());
    for (const T v : x) want.push_back(ours(row.function, v));
    CAPTURE(static_cast<int>(row.function));
    const auto count = static_cast<int64_t>(x.size());
    if (cpu_has_avx2()) {
      row.avx2(x.data(), got.data(), count);
      CHECK(same_bits(got, want));
    }
    if (cpu_has_avx512()) {
      std::fill(got.begin(), got.end(), T(7));
      row.avx512(x.data(), got.data(), count);
      CHECK(same_bits(got, want));
    }
  }
}

}  // namespace

TEST_CASE("math: errors stay within the documented bounds") {
  for (const Function f : {Function::kExp, Function::kLog, Function::kTanh}) {
    check_errors<float>(f, 20000);
    check_errors<double>(f, 5000);
  }
}

TEST_CASE("math: special values") {
  const auto check = [](auto zero) {
    using T = decltype(zero);
    constexpr T kInfinity = std::numeric_limits<T>::infinity();
    CHECK(lockstep_exp(zero) == T(1));
    CHECK(lockstep_exp(kInfinity) == kInfinity);
    CHECK(lockstep_exp(-kInfinity) == T(0));
    CHECK(lockstep_exp(MathConstants<T>::kExpMax) < kInfinity);
    CHECK(lockstep_exp(std::nextafter(MathConstants<T>::kExpMax, kInfinity)) == kInfinity);
    CHECK(lockstep_log(T(1)) == T(0));
    CHECK(lockstep_log(zero) == -kInfinity);
    CHECK(lockstep_log(kInfinity) == kInfinity);
    CHECK(std::isnan(lockstep_log(T(-1))));
    CHECK(std::signbit(lockstep_tanh(-zero)));
    CHECK(lockstep_tanh(kInfinity) == T(1));
    CHECK(lockstep_tanh(-kInfinity) == T(-1));
    for (const T nan :
         {std::numeric_limits<T>::quiet_NaN(), -std::numeric_limits<T>::quiet_NaN()}) {
      for (const T y : {lockstep_exp(nan), lockstep_log(nan), lockstep_tanh(nan)}) {
        CHECK(std::isnan(y));
        CHECK(!std::signbit(y));
      }
    }
  };
  check(0.0f);
  check(0.0);
}

TEST_CASE("math: vectors give the scalar bits") {
  compare_vectors<float>();
  compare_vectors<double>();
}

}  // namespace lockstep
