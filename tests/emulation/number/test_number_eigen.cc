// Scalar types inside Eigen: traits, products, decompositions, conversions and random matrices.
#include <doctest/doctest.h>

#include <Eigen/Dense>
#include <cmath>
#include <limits>
#include <string>

#include "emulation/number/number_eigen.h"
#include "tests/emulation/number/number_types.h"

using namespace lockstep;

namespace {

template <typename T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic>;

}  // namespace

TEST_CASE("scalar types in Eigen: traits are those of the format") {
  for_each_type(kNamedTypes, [](const auto& type) {
    using T = typename std::decay_t<decltype(type)>::Type;
    using Traits = Eigen::NumTraits<T>;
    const Format& format = type.format();
    CAPTURE(format.name);
    CHECK(!Traits::IsComplex);
    CHECK(!Traits::IsInteger);
    CHECK(Traits::IsSigned);
    CHECK(!Traits::RequireInitialization);
    CHECK(static_cast<double>(Traits::epsilon()) == format.machine_epsilon());
    CHECK(static_cast<double>(Traits::highest()) == format.max_finite);
    CHECK(static_cast<double>(Traits::lowest()) == -format.max_finite);
    CHECK(Traits::digits10() == std::numeric_limits<T>::digits10);
    // At least half of the digits agree, and no number is approximately twice itself.
    const auto precision = static_cast<double>(Traits::dummy_precision());
    CHECK(precision >= std::sqrt(format.machine_epsilon()));
    CHECK(precision <= std::sqrt(2 * format.machine_epsilon()));
    CHECK(precision <= 1);
  });
}

TEST_CASE("scalar types in Eigen: without rounding, matrices equal those of float") {
  for_each_type(
      std::tuple(NamedType<fp16>{"fp16"}, NamedType<bf16>{"bf16"}, NamedType<tf32>{"tf32"}),
      [](const auto& type) {
        using T = typename std::decay_t<decltype(type)>::Type;
        CAPTURE(std::string(type.name));
        // Entries -2..2: every partial sum of 37 products is an integer below 2^8.
        constexpr int kRows = 19, kInner = 37, kCols = 23;
        Matrix<float> a(kRows, kInner), b(kInner, kCols);
        for (int i = 0; i < a.size(); ++i) a(i) = static_cast<float>(i * 7 % 5 - 2);
        for (int i = 0; i < b.size(); ++i) b(i) = static_cast<float>(i * 11 % 5 - 2);
        const Matrix<T> x = a.cast<T>(), y = b.cast<T>();
        CHECK((x * y).template cast<float>() == a * b);
        CHECK((x + x).template cast<float>() == a + a);
        CHECK((x.transpose() * x).template cast<float>() == a.transpose() * a);
        CHECK((x * T(0.5)).cwiseAbs().maxCoeff() == T(1));
        CHECK((x.array() < T(0)).count() == (a.array() < 0).count());
        CHECK(x.isApprox(x));
        CHECK(!x.isApprox(x + x));
      });
}

TEST_CASE("scalar types in Eigen: every step of a sum rounds to the format") {
  // 2048 + 1 is not an FP16 number: in any order, a running sum of ones cannot exceed 2048, but
  // pairs of such sums can.
  const Eigen::Matrix<fp16, 1, Eigen::Dynamic> ones =
      Eigen::Matrix<fp16, 1, Eigen::Dynamic>::Ones(4099);
  CHECK(ones.cast<float>().sum() == 4099);
  CHECK(ones.sum() != fp16(4099));
  fp16 chain(0);
  for (int i = 0; i < 4099; ++i) chain += ones(i);
  CHECK(chain == fp16(2048));
}

TEST_CASE("scalar types in Eigen: LU solves to the precision of the format") {
  Eigen::Matrix3f a;
  a << 4, 1, 2, 1, 8, 1, 2, 1, 16;
  const Eigen::Vector3f x(1, -2, 3);
  const auto solve = [&]<typename T>(T) {
    const Eigen::Matrix<T, 3, 3> low = a.cast<T>();
    const Eigen::Matrix<T, 3, 1> b = (a * x).cast<T>();
    return Eigen::Vector3f(low.partialPivLu().solve(b).template cast<float>());
  };
  // |x^ - x| <= 3 n u cond(A) |x| (Higham, Accuracy and Stability, 2002, theorem 9.4, leading
  // term), n = 3.
  const float condition = a.inverse().norm() * a.norm();
  const auto bound = [&](double unit_roundoff) {
    return 9 * static_cast<float>(unit_roundoff) * condition * x.norm();
  };
  const float fp16_error = (solve(fp16()) - x).norm(), bf16_error = (solve(bf16()) - x).norm();
  CHECK(fp16_error <= bound(find_format("fp16").unit_roundoff()));
  CHECK(bf16_error <= bound(find_format("bf16").unit_roundoff()));
  CHECK(bf16_error > fp16_error);
}

TEST_CASE("scalar types in Eigen: random matrices lie in [-1, 1] and vary") {
  for_each_type(std::tuple(NamedType<fp16>{"fp16"}, NamedType<fp4_e2m1>{"fp4_e2m1"}),
                [](const auto& type) {
                  using T = typename std::decay_t<decltype(type)>::Type;
                  CAPTURE(std::string(type.name));
                  const Matrix<T> random = Matrix<T>::Random(20, 20);
                  CHECK((random.array().abs() <= T(1)).all());
                  CHECK(random.maxCoeff() > T(0));
                  CHECK(random.minCoeff() < T(0));
                });
}
