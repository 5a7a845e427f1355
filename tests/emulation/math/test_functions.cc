// Tests erf, expm1, log1p, sigmoid and powers against a wider function; the elementwise functions
// of every kernel set against the scalar loops, bit for bit; derivatives against central
// differences.
#include <doctest/doctest.h>

#include <boost/math/special_functions/digamma.hpp>
#include <boost/math/special_functions/erf.hpp>
#include <boost/math/special_functions/gamma.hpp>
#include <boost/math/special_functions/trigamma.hpp>
#include <boost/multiprecision/cpp_bin_float.hpp>

#include <numbers>

#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/scalar/elements/functions.h"
#include "emulation/kernels/scalar/kernels.h"
#include "emulation/math/single_numbers.h"
#include "tests/emulation/kernels/kernel_test_util.h"

namespace lockstep {
namespace {

using Wide = boost::multiprecision::cpp_bin_float_50;

struct NamedFunction {
  Unary function;
  std::string_view name;
};
#define LOCKSTEP_ENTRY(Name) {Unary::k##Name, #Name},
constexpr NamedFunction kUnary[] = {LOCKSTEP_UNARY_FUNCTIONS(LOCKSTEP_ENTRY)};
#undef LOCKSTEP_ENTRY

// Parameters that exercise the function.
FunctionParameters parameters_of(Unary function) {
  switch (function) {
    case Unary::kLeakyRelu:
      return {0.1, 0};
    case Unary::kElu:
      return {1.5, 0};
    case Unary::kSoftplus:
      return {2, 9};
    case Unary::kClamp:
      return {-0.7, 1.3};
    case Unary::kPower:
      return {2.7, 0};
    default:
      return {};
  }
}

// |y - exact| in units in the last place of the exact value.
template <typename T>
double error_ulps(T y, const Wide& exact) {
  const Format& format = find_format(sizeof(T) == 4 ? "fp32" : "fp64");
  const double last_place = ulp(static_cast<double>(exact), format);
  return static_cast<double>(abs(Wide(y) - exact) / Wide(last_place));
}

// The largest error of ours(x) over `count` x between low and high, half of them small.
template <typename T, typename Ours, typename Exact>
double worst_error(size_t count, double low, double high, Ours ours, Exact exact) {
  const RandomStream random(5, RandomPurpose::kTest, sizeof(T));
  double worst = 0;
  for (size_t i = 0; i < count; ++i) {
    double x = low + (high - low) * random.uniform(2 * i);
    if (i % 2) x = std::ldexp(x, -static_cast<int>(random.bits(2 * i + 1) % 24));
    const T argument = static_cast<T>(x);
    if (argument == 0) continue;
    worst = std::max(worst, error_ulps(ours(argument), exact(Wide(argument))));
  }
  return worst;
}

// The bounds in emulation/math/functions-inl.h and power.h.
constexpr double kFunctionBound = 1.5, kSigmoidBound = 2, kPowerBound = 1;

template <typename T>
void check_functions(size_t count) {
  const double top = sizeof(T) == 4 ? 88 : 709;
  const double erf_error = worst_error<T>(count, -7, 7, lockstep_erf<T>,
                                          [](Wide x) { return Wide(boost::math::erf(x)); });
  const double expm1_error = worst_error<T>(count, -50, top, lockstep_expm1<T>, [](Wide x) -> Wide {
    return abs(x) < 0.1 ? Wide(2 * exp(x / 2) * sinh(x / 2)) : Wide(exp(x) - 1);
  });
  const double log1p_error = worst_error<T>(count, -0.999, 1e6, lockstep_log1p<T>,
                                            [](Wide x) { return Wide(log(1 + x)); });
  const double sigmoid_error = worst_error<T>(count, -top, top, lockstep_sigmoid<T>,
                                              [](Wide x) { return Wide(1 / (1 + exp(-x))); });
  CAPTURE(sizeof(T));
  CHECK(erf_error <= kFunctionBound);
  CHECK(expm1_error <= kFunctionBound);
  CHECK(log1p_error <= kFunctionBound);
  CHECK(sigmoid_error <= kSigmoidBound);
  for (const double error : {erf_error, expm1_error, log1p_error, sigmoid_error}) {
    CHECK(error > 0.4);  // the check has an effect
  }
}

// Wide enough for the angles of large numbers: 1024 bits before the point, 160 after it.
using Widest = boost::multiprecision::number<boost::multiprecision::cpp_bin_float<400>>;

// The bounds in emulation/math/trigonometry.h and hyperbolic.h.
constexpr double kSineBound = 1, kArctangentBound = 1.5, kTrigonometricBound = 2.5,
                 kHyperbolicBound = 3, kInverseHyperbolicBound = 3.5;

template <typename T>
void check_worst(const char* name, double bound, double error) {
  CAPTURE(name);
  CAPTURE(sizeof(T));
  CHECK(error <= bound);
  CHECK(error > 0.4);  // the check has an effect
}

#define LOCKSTEP_WORST(name, bound, low, high)                                                   \
  check_worst<T>(#name, bound, worst_error<T>(count, low, high, lockstep_##name<T>, [](Wide x) { \
                   return Wide(name(x));                                                         \
                 }))

template <typename T>
void check_trigonometry(size_t count) {
  LOCKSTEP_WORST(sin, kSineBound, -100, 100);
  LOCKSTEP_WORST(cos, kSineBound, -100, 100);
  LOCKSTEP_WORST(tan, kTrigonometricBound, -100, 100);
  LOCKSTEP_WORST(atan, kArctangentBound, -20, 20);
  LOCKSTEP_WORST(asin, kTrigonometricBound, -1, 1);
  LOCKSTEP_WORST(acos, kTrigonometricBound, -1, 1);
  LOCKSTEP_WORST(sinh, kHyperbolicBound, -80, 80);
  LOCKSTEP_WORST(cosh, kHyperbolicBound, -80, 80);
  LOCKSTEP_WORST(asinh, kInverseHyperbolicBound, -1e4, 1e4);
  LOCKSTEP_WORST(acosh, kInverseHyperbolicBound, 1, 1e4);
  LOCKSTEP_WORST(atanh, kInverseHyperbolicBound, -1, 1);
}
#undef LOCKSTEP_WORST

template <typename T>
void check_power(size_t count) {
  const RandomStream random(6, RandomPurpose::kTest, sizeof(T));
  const double top = sizeof(T) == 4 ? 87 : 708;
  double worst = 0;
  for (size_t i = 0; i < count; ++i) {
    // x anywhere, or close to 1 with a large y, so that x^y uses the whole range.
    const double u = random.uniform(3 * i), v = 2 * random.uniform(3 * i + 1) - 1;
    const T x = static_cast<T>(i % 2 ? 1 + (u - 0.5) / 64 : std::ldexp(1 + u, i % 40 - 20));
    if (x == 1) continue;
    const T y = static_cast<T>(v * top / std::fabs(std::log(static_cast<double>(x))));
    worst = std::max(worst, error_ulps(lockstep_pow(x, y), Wide(pow(Wide(x), Wide(y)))));
  }
  CAPTURE(sizeof(T));
  CHECK(worst <= kPowerBound);
  CHECK(worst > 0.4);
}

// Arguments around every kink and bound, and over many binades, with special values.
template <typename T>
std::vector<T> arguments() {
  std::vector<T> x = make_data<T>(5003, DataKind::kSpecial, find_format("fp32"), 1);
  for (const T v : make_data<T>(2000, DataKind::kSmall, find_format("fp32"), 2)) x.push_back(8 * v);
  for (const double v : {0.0, 0.7, 1.0, 1.25, 1.3, 3.0, 4.0, 6.0, 9.0, 10.0, 20.0, 40.0, 80.0, 88.7,
                         709.8, 1e30, 1e-30, 1e-40}) {
    for (const T w : {static_cast<T>(v), std::nextafter(static_cast<T>(v), T(0)),
                      std::nextafter(static_cast<T>(v), T(1e35))}) {
      x.push_back(w);
      x.push_back(-w);
    }
  }
  return x;
}

template <typename T>
void check_conformance() {
  const std::vector<T> x = arguments<T>();
  std::vector<T> dy = make_data<T>(x.size(), DataKind::kSpecial, find_format("fp32"), 3);
  for (const NamedFunction& row : kUnary) {
    const FunctionParameters parameters = parameters_of(row.function);
    const auto run = [&](const Kernels<T>& kernels, int64_t count) {
      std::vector<T> y(static_cast<size_t>(2 * count));
      kernels.unary(row.function, parameters, x.data(), y.data(), count);
      kernels.unary_backward(row.function, parameters, x.data(), dy.data(), y.data() + count,
                             count);
      return y;
    };
    for (const size_t size : {size_t{1}, size_t{31}, size_t{32}, size_t{33}, x.size()}) {
      const auto count = static_cast<int64_t>(size);
      const std::vector<T> want = run(scalar_kernels().of<T>(), count);
      for (const KernelSet* set : available_kernel_sets()) {
        for (const int threads : {1, 3}) {
          const ThreadCountGuard guard(threads);
          CAPTURE(row.name);
          CAPTURE(set->name);
          CAPTURE(size);
          CHECK(same_bits(run(set->of<T>(), count), want));
        }
      }
    }
  }
}

template <typename T>
void check_binary_conformance() {
  const std::vector<T> a = arguments<T>();
  std::vector<T> b = make_data<T>(a.size(), DataKind::kSpecial, find_format("fp32"), 4);
  for (size_t i = 0; i < b.size(); i += 7) b[i] = a[i];
  const auto count = static_cast<int64_t>(a.size());
#define LOCKSTEP_ENTRY(Name) Binary::k##Name,
  for (const Binary function : {LOCKSTEP_BINARY_FUNCTIONS(LOCKSTEP_ENTRY)}) {
#undef LOCKSTEP_ENTRY
    std::vector<T> want(a.size());
    scalar_kernels().of<T>().binary(function, {0.3}, a.data(), b.data(), want.data(), count);
    for (const KernelSet* set : available_kernel_sets()) {
      std::vector<T> y(a.size());
      set->of<T>().binary(function, {0.3}, a.data(), b.data(), y.data(), count);
      CAPTURE(static_cast<int>(function));
      CAPTURE(set->name);
      CHECK(same_bits(y, want));
    }
  }
}

}  // namespace

TEST_CASE("functions: errors stay within the documented bounds") {
  check_functions<float>(6000);
  check_functions<double>(3000);
  check_power<float>(3000);
  check_power<double>(3000);
}

TEST_CASE("functions: angles and hyperbolic functions") {
  check_trigonometry<float>(3000);
  check_trigonometry<double>(3000);
}

TEST_CASE("functions: sines of large numbers") {
  const RandomStream random(8, RandomPurpose::kTest, 0);
  for (uint64_t i = 0; i < 500; ++i) {
    const double x = std::ldexp(1 + random.uniform(2 * i), static_cast<int>(2 * i + 20));
    const Widest exact = sin(Widest(x));
    CAPTURE(x);
    CHECK(error_ulps(lockstep_sin(x), Wide(exact)) <= kSineBound);
    CHECK(error_ulps(lockstep_cos(x), Wide(cos(Widest(x)))) <= kSineBound);
  }
  // The double nearest to a multiple of pi/2: 61 bits cancel.
  CHECK(lockstep_cos(std::ldexp(6381956970095103.0, 797)) == -4.6871659242546277e-19);
}

TEST_CASE("functions: the gamma function") {
  const RandomStream random(9, RandomPurpose::kTest, 0);
  for (uint64_t i = 0; i < 2000; ++i) {
    const double x = std::ldexp(1 + random.uniform(i), static_cast<int>(i % 20) - 8);
    const auto check = [&](double y, const Wide& exact, double bound = kGammaError) {
      CAPTURE(x);
      CHECK(abs(Wide(y) - exact) <= bound * (1 + abs(exact)));
    };
    check(lockstep_lgamma(x), boost::math::lgamma(Wide(x)));
    check(lockstep_digamma(x), boost::math::digamma(Wide(x)));
    check(lockstep_trigamma(x), boost::math::trigamma(Wide(x)), kTrigammaError);
  }
  CHECK(lockstep_lgamma(1.0) == 0);
  CHECK(std::isinf(lockstep_lgamma(-3.0)));
  CHECK(lockstep_lgamma(-0.5) == doctest::Approx(1.2655121234846454));
  CHECK(lockstep_digamma(-0.5) == doctest::Approx(0.03648997397857652));
  CHECK(lockstep_trigamma(-0.5) == doctest::Approx(8.934802200544679));
}

TEST_CASE("functions: special values of angles") {
  const double infinity = std::numeric_limits<double>::infinity(), pi = std::numbers::pi;
  CHECK(std::isnan(lockstep_sin(infinity)));
  CHECK(std::isnan(lockstep_cos(-infinity)));
  CHECK(std::signbit(lockstep_sin(-0.0)));
  CHECK(lockstep_cos(0.0) == 1);
  CHECK(lockstep_atan(infinity) == pi / 2);
  CHECK(std::isnan(lockstep_asin(1.0 + 0x1p-52)));
  CHECK(lockstep_acos(-1.0) == pi);
  CHECK(std::isnan(lockstep_acosh(0.5)));
  CHECK(lockstep_atanh(1.0) == infinity);
  CHECK(std::isnan(lockstep_atanh(2.0)));
  CHECK(lockstep_sinh(710.0) == doctest::Approx(std::sinh(710.0)));
  CHECK(lockstep_exp2(10.0) == 1024);
  CHECK(lockstep_atan2(0.0, -1.0) == pi);
  CHECK(lockstep_atan2(-0.0, -1.0) == -pi);
  CHECK(lockstep_atan2(-1.0, 0.0) == -pi / 2);
  CHECK(lockstep_atan2(1.0, 1.0) == pi / 4);
}

TEST_CASE("functions: special values") {
  const auto check = [](auto zero) {
    using T = decltype(zero);
    constexpr T kInfinity = std::numeric_limits<T>::infinity();
    const T nan = std::numeric_limits<T>::quiet_NaN();
    CHECK(lockstep_erf(kInfinity) == T(1));
    CHECK(lockstep_erf(-kInfinity) == T(-1));
    CHECK(std::signbit(lockstep_erf(-zero)));
    CHECK(lockstep_expm1(-kInfinity) == T(-1));
    CHECK(lockstep_expm1(kInfinity) == kInfinity);
    CHECK(std::signbit(lockstep_expm1(-zero)));
    CHECK(lockstep_log1p(T(-1)) == -kInfinity);
    CHECK(lockstep_log1p(kInfinity) == kInfinity);
    CHECK(std::isnan(lockstep_log1p(T(-2))));
    CHECK(std::signbit(lockstep_log1p(-zero)));
    CHECK(lockstep_sigmoid(-kInfinity) == T(0));
    CHECK(lockstep_sigmoid(kInfinity) == T(1));
    CHECK(lockstep_sigmoid(zero) == T(0.5));
    for (const T y : {lockstep_erf(nan), lockstep_expm1(nan), lockstep_log1p(nan)}) {
      CHECK(std::isnan(y));
    }
  };
  check(0.0f);
  check(0.0);
}

TEST_CASE("functions: powers have C's special values") {
  // std::pow is the oracle for results that the standard makes exact, without rounding.
  const auto check = [](auto zero) {
    using T = decltype(zero);
    constexpr T kInfinity = std::numeric_limits<T>::infinity();
    const T values[] = {zero,  -zero,  T(1),    T(-1), T(2),      T(-2),      T(3),
                        T(-3), T(0.5), T(-0.5), T(4),  kInfinity, -kInfinity, std::nan("")};
    int compared = 0;
    for (const T x : values) {
      for (const T y : values) {
        const T want = static_cast<T>(std::pow(x, y)), got = lockstep_pow(x, y);
        CAPTURE(x);
        CAPTURE(y);
        if (std::isnan(want)) {
          CHECK(std::isnan(got));
          CHECK(!std::signbit(got));
        } else if (std::isinf(want) || want == 0 || want == std::floor(want)) {
          CHECK(got == want);
          CHECK(std::signbit(got) == std::signbit(want));
          ++compared;
        }
      }
    }
    CHECK(compared > 100);
  };
  check(0.0f);
  check(0.0);
}

TEST_CASE("functions: every kernel set gives the scalar bits, on any number of threads") {
  check_conformance<float>();
  check_conformance<double>();
  check_binary_conformance<float>();
  check_binary_conformance<double>();
  // Long enough for several ranges over the threads.
  const std::vector<float> x = make_data<float>(100001, DataKind::kWide, find_format("fp32"), 9);
  std::vector<float> one(x.size()), three(x.size());
  for (const auto& [threads, y] : {std::pair{1, &one}, std::pair{3, &three}}) {
    const ThreadCountGuard guard(threads);
    active_kernels().f32.unary(Unary::kGelu, {}, x.data(), y->data(), 100001);
  }
  CHECK(same_bits(one, three));
}

// Where the function is finite and its second and third derivatives are moderate.
std::pair<double, double> interval_of(Unary function) {
  switch (function) {
    case Unary::kLog:
    case Unary::kSqrt:
    case Unary::kRsqrt:
    case Unary::kPower:
    case Unary::kReciprocal:
    case Unary::kLgamma:
    case Unary::kDigamma:
      return {0.53, 3.5};
    case Unary::kLog1p:
      return {-0.47, 3.5};
    case Unary::kTan:
      return {-1.03, 1.03};
    case Unary::kAsin:
    case Unary::kAcos:
    case Unary::kAtanh:
      return {-0.71, 0.71};
    case Unary::kAcosh:
      return {1.43, 3.5};
    case Unary::kFloor:
    case Unary::kCeil:
    case Unary::kRound:
    case Unary::kTrunc:
      return {-3.465, 3.5};  // no step falls on a whole or a half number
    default:
      return {-3.47, 3.5};
  }
}

// d = (f(x + h) - f(x - h)) / 2h, h = cbrt(u): both its errors, h^2 f''' / 6 and u f / h, are of
// order h^2; 100 times that covers f and f''' of the functions here at |x| <= 3.
TEST_CASE("functions: derivatives are the slopes of their functions") {
  const double h = std::cbrt(0x1p-53), tolerance = 100 * h * h;
  const Kernels<double>& kernels = scalar_kernels().f64;
  for (const NamedFunction& row : kUnary) {
    const FunctionParameters parameters = parameters_of(row.function);
    const auto value = [&](double x) {
      double y;
      kernels.unary(row.function, parameters, &x, &y, 1);
      return y;
    };
    const auto [low, high] = interval_of(row.function);
    for (double x = low; x < high; x += 0.11) {
      const double saved = saves_output(row.function) ? value(x) : x, dy = 1.5;
      double dx;
      kernels.unary_backward(row.function, parameters, &saved, &dy, &dx, 1);
      CAPTURE(row.name);
      CAPTURE(x);
      // Its slope is 1/6 in float.
      const double rounding = row.function == Unary::kHardsigmoid ? 0x1p-24 : 0;
      CHECK(std::fabs(dx - dy * (value(x + h) - value(x - h)) / (2 * h)) <=
            (tolerance + rounding) * (1 + std::fabs(dx)));
    }
  }
}

}  // namespace lockstep
