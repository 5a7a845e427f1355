// See clip.h.
#include "src/update/clip.h"

#include <cmath>
#include <type_traits>
#include <utility>

#include "emulation/accumulator/accumulator.h"
#include "emulation/kernels/quantize.h"
#include "emulation/math/power.h"

namespace lockstep {
namespace {

// The arithmetic of one container.
template <typename T>
class Clip {
 public:
  explicit Clip(const KernelSet& set) : set_(set), kernels_(set.of<T>()) {}

  T norm_of(std::span<const T> values, double norm_type) const {
    static const Accumulator& kSum =
        find_accumulator(std::is_same_v<T, float> ? "fp32_fused" : "fp64_fused");
    if (values.empty()) return 0;
    const auto count = static_cast<int64_t>(values.size());
    std::vector<T> powers(values.size());
    if (norm_type == 2) {
      kernels_.mul(values.data(), values.data(), powers.data(), count);
    } else {
      kernels_.unary(Unary::kAbs, {}, values.data(), powers.data(), count);
      if (norm_type != 1 && !std::isinf(norm_type)) {
        kernels_.unary(Unary::kPower, {.a = norm_type}, powers.data(), powers.data(), count);
      }
    }
    T norm = 0;
    if (std::isinf(norm_type)) {  // NaN if any number is NaN, as in torch
      kernels_.row_maxima(powers.data(), &norm, nullptr, 1, count);
      return norm;
    }
    kernels_.channel_sum(powers.data(), &norm, 1, 1, count, kSum);
    if (norm_type == 2) return std::sqrt(norm);
    return norm_type == 1 ? norm : lockstep_pow(norm, static_cast<T>(1 / norm_type));
  }

  double by_norm(const std::vector<ClippedGradient>& gradients, double max_norm,
                 double norm_type) const {
    constexpr double kTiny = 1e-6;  // torch's guard against a norm of zero
    std::vector<T> norms;
    const Format* common = gradients[0].format;
    for (const ClippedGradient& g : gradients) {
      norms.push_back(rounded(norm_of(std::as_const(*g.values).as<T>(), norm_type), g.format));
      if (g.format != common) common = &find_format("fp32");
    }
    const T total = rounded(norm_of(norms, norm_type), common);
    const T guarded =
        rounded(static_cast<T>(total + rounded(static_cast<T>(kTiny), common)), common);
    const T ratio = rounded(rounded(static_cast<T>(max_norm), common) / guarded, common);
    const T coefficient = ratio > 1 ? T(1) : ratio;  // a NaN stays a NaN
    for (const ClippedGradient& g : gradients) {
      const auto values = g.values->as<T>();
      kernels_.scale(values.data(), coefficient, values.data(), g.values->size());
      quantize<T>(set_, values, values, {g.format}, nullptr);
    }
    return total;
  }

  void clip_values(const ClippedGradient& g, double max_value) const {
    const T limit = rounded(static_cast<T>(max_value), g.format);
    T* values = g.values->as<T>().data();
    kernels_.unary(Unary::kClamp, {.a = -limit, .b = limit}, values, values, g.values->size());
  }

 private:
  T rounded(T x, const Format* format) const {
    kernels_.quantize(&x, &x, 1, {format}, nullptr);
    return x;
  }

  const KernelSet& set_;
  const Kernels<T>& kernels_;
};

}  // namespace

double clip_by_norm(const KernelSet& kernels, const std::vector<ClippedGradient>& gradients,
                    double max_norm, double norm_type) {
  if (gradients.empty()) return 0;
  return gradients[0].values->container() == Container::kF64
             ? Clip<double>(kernels).by_norm(gradients, max_norm, norm_type)
             : Clip<float>(kernels).by_norm(gradients, max_norm, norm_type);
}

double norm_of_norms(const KernelSet& kernels, std::span<const double> norms, double norm_type) {
  return Clip<double>(kernels).norm_of(norms, norm_type);
}

void clip_by_value(const KernelSet& kernels, const std::vector<ClippedGradient>& gradients,
                   double max_value) {
  for (const ClippedGradient& g : gradients) {
    if (g.values->container() == Container::kF64) {
      Clip<double>(kernels).clip_values(g, max_value);
    } else {
      Clip<float>(kernels).clip_values(g, max_value);
    }
  }
}

}  // namespace lockstep
