// Makes Number a scalar type of Eigen: its traits, and how to draw a random one.
// Matrices of Numbers then work like matrices of float: products, sums, decompositions,
// cast<float>(). Every operation rounds to the format. Eigen chooses the order of its sums; for a
// declared order and accumulator use the kernels (kernel_set.h).
#pragma once

#include <Eigen/Core>
#include <cstdlib>

#include "emulation/number/number.h"

namespace Eigen {

template <lockstep::NumberFormat F>
struct NumTraits<lockstep::Number<F>> : GenericNumTraits<lockstep::Number<F>> {
  using Number = lockstep::Number<F>;
  enum {
    IsComplex = 0,
    IsInteger = 0,
    IsSigned = 1,
    RequireInitialization = 0,
    ReadCost = 1,
    AddCost = 10,  // instructions: two decodings, the operation, a rounding
    MulCost = 10
  };
  // The default of isApprox: half of the digits agree, |x - y| <= 2^-((p-1)/2) min(|x|, |y|).
  static constexpr Number dummy_precision() {
    return Number(1.0 / static_cast<double>(1 << ((F.precision - 1) / 2)));
  }
};

namespace internal {

// Eigen's own divides two integers in the scalar type. They exceed the range of most formats.
template <lockstep::NumberFormat F>
struct random_default_impl<lockstep::Number<F>, false, false> {
  using Number = lockstep::Number<F>;
  static Number run(const Number& low, const Number& high) {
    const double u = static_cast<double>(std::rand()) / static_cast<double>(RAND_MAX);
    const double from = static_cast<double>(low);
    return Number(from + u * (static_cast<double>(high) - from));
  }
  static Number run() { return run(Number(-1), Number(1)); }
};

}  // namespace internal
}  // namespace Eigen
