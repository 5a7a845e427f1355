// Tests erf, expm1, log1p, sigmoid and powers against a wider function; the elementwise functions
// of every kernel set against the scalar loops, bit for bit; derivatives against central
// differences.
#include <doctest/doctest.h>

#include <boost/math/special_functions/erf.hpp>
#include <boost/multiprecision/cpp_bin_float.hpp>

#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/scalar/functions.h"
#include "emulation/kernels/scalar/kernels.h"
#include "emulation/math/functions.h"
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
    const bool positive = row.function == Unary::kLog || row.function == Unary::kSqrt ||
                          row.function == Unary::kRsqrt || row.function == Unary::kPower ||
                          row.function == Unary::kReciprocal;
    for (double x = positive ? 0.53 : -3.47; x < 3.5; x += 0.11) {
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
