// Gradients that PyTorch's autograd computes with several kernels: in a narrow format each kernel
// rounds. For ops/unary.cc alone.
#pragma once

#include <type_traits>
#include <vector>

#include "emulation/format/format.h"
#include "emulation/kernels/kernel_set.h"

namespace lockstep {

// Arrays of one length; every result is rounded to `format`.
template <typename T>
class GradientSteps {
 public:
  using Values = std::vector<T>;
  GradientSteps(const Kernels<T>& kernels, const Format& format)
      : kernels_(kernels), format_(format) {}

  Values of(Unary function, const Values& x) const {
    return rounded(x, [&](T* y) { kernels_.unary(function, {}, x.data(), y, size(x)); });
  }
  Values product(const Values& a, const Values& b) const {
    return rounded(a, [&](T* y) { kernels_.mul(a.data(), b.data(), y, size(a)); });
  }
  Values quotient(const Values& a, const Values& b) const {
    return rounded(
        a, [&](T* y) { kernels_.binary(Binary::kDiv, {}, a.data(), b.data(), y, size(a)); });
  }
  Values scaled(const Values& x, double factor) const {
    return rounded(x, [&](T* y) { kernels_.scale(x.data(), static_cast<T>(factor), y, size(x)); });
  }
  Values square(const Values& x) const { return product(x, x); }
  Values plus(const Values& x, double number) const {
    const Values numbers(x.size(), static_cast<T>(number));
    return rounded(x, [&](T* y) { kernels_.add(x.data(), numbers.data(), y, size(x)); });
  }

 private:
  static int64_t size(const Values& x) { return static_cast<int64_t>(x.size()); }

  template <typename Fill>
  Values rounded(const Values& like, Fill fill) const {
    Values y(like.size());
    fill(y.data());
    kernels_.quantize(y.data(), y.data(), size(y), {&format_}, nullptr);
    return y;
  }

  const Kernels<T>& kernels_;
  const Format& format_;
};

// dx from what the function saves, x or y, and dy; made of a lambda that does it for either type.
struct GradientInSteps {
  template <typename T>
  using Formula = std::vector<T> (*)(const GradientSteps<T>&, const std::vector<T>& saved,
                                     const std::vector<T>& dy);
  Formula<float> of_float = nullptr;
  Formula<double> of_double = nullptr;

  constexpr GradientInSteps() = default;
  template <typename Lambda>
  constexpr GradientInSteps(Lambda formula)  // NOLINT: stands in a row as the formula itself
      : of_float(formula), of_double(formula) {}

  explicit operator bool() const { return of_float != nullptr; }
  template <typename T>
  Formula<T> of() const {
    if constexpr (std::is_same_v<T, float>) {
      return of_float;
    } else {
      return of_double;
    }
  }
};

}  // namespace lockstep
