// See clip.h.
#include "src/update/clip.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include "emulation/accumulator/accumulator.h"
#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/kernel_set.h"
#include "emulation/kernels/quantize.h"
#include "emulation/math/power.h"

namespace lockstep {
namespace {

template <typename T>
T rounded(T x, const Format* format) {
  T out = x;
  quantize<T>(std::span<const T>(&x, 1), std::span<T>(&out, 1), {format}, nullptr);
  return out;
}

// NaN if any number is NaN, as in torch.
template <typename T>
T largest_magnitude(std::span<const T> values) {
  T largest = 0;
  for (const T x : values) {
    if (std::isnan(x)) return x;
    largest = std::max(largest, std::abs(x));
  }
  return largest;
}

template <typename T>
T norm_of(std::span<const T> values, double norm_type) {
  if (std::isinf(norm_type)) return largest_magnitude(values);
  static const Accumulator& kSum =
      find_accumulator(std::is_same_v<T, float> ? "fp32_fused" : "fp64_fused");
  const Kernels<T>& kernels = active_kernels().of<T>();
  const auto count = static_cast<int64_t>(values.size());
  std::vector<T> powers(values.size());
  if (norm_type == 2) {
    kernels.mul(values.data(), values.data(), powers.data(), count);
  } else {
    kernels.unary(Unary::kAbs, {}, values.data(), powers.data(), count);
    if (norm_type != 1) {
      kernels.unary(Unary::kPower, {.a = norm_type}, powers.data(), powers.data(), count);
    }
  }
  T sum = 0;
  kernels.channel_sum(powers.data(), &sum, 1, 1, count, kSum);
  if (norm_type == 2) return std::sqrt(sum);
  return norm_type == 1 ? sum : lockstep_pow(sum, static_cast<T>(1 / norm_type));
}

template <typename T>
double clip_norm(const std::vector<ClippedGradient>& gradients, double max_norm, double norm_type) {
  constexpr double kTiny = 1e-6;  // torch's guard against a norm of zero
  std::vector<T> norms;
  const Format* common = gradients[0].format;
  for (const ClippedGradient& g : gradients) {
    norms.push_back(rounded(norm_of(std::as_const(*g.values).as<T>(), norm_type), g.format));
    if (g.format != common) common = &find_format("fp32");
  }
  const T total = rounded(norm_of(std::span<const T>(norms), norm_type), common);
  const T guarded = rounded(static_cast<T>(total + rounded(static_cast<T>(kTiny), common)), common);
  const T ratio = rounded(rounded(static_cast<T>(max_norm), common) / guarded, common);
  const T coefficient = ratio > 1 ? T(1) : ratio;  // a NaN stays a NaN
  for (const ClippedGradient& g : gradients) {
    const auto values = g.values->as<T>();
    active_kernels().of<T>().scale(values.data(), coefficient, values.data(), g.values->size());
    quantize<T>(values, values, {g.format}, nullptr);
  }
  return total;
}

template <typename T>
void clip_values(const ClippedGradient& g, double max_value) {
  const T limit = rounded(static_cast<T>(max_value), g.format);
  for (T& x : g.values->as<T>()) {
    if (x > limit) x = limit;
    if (x < -limit) x = -limit;
  }
}

}  // namespace

double clip_by_norm(const std::vector<ClippedGradient>& gradients, double max_norm,
                    double norm_type) {
  if (gradients.empty()) return 0;
  return gradients[0].values->container() == Container::kF64
             ? clip_norm<double>(gradients, max_norm, norm_type)
             : clip_norm<float>(gradients, max_norm, norm_type);
}

double norm_of_norms(std::span<const double> norms, double norm_type) {
  return norm_of(norms, norm_type);
}

void clip_by_value(const std::vector<ClippedGradient>& gradients, double max_value) {
  for (const ClippedGradient& g : gradients) {
    if (g.values->container() == Container::kF64) {
      clip_values<double>(g, max_value);
    } else {
      clip_values<float>(g, max_value);
    }
  }
}

}  // namespace lockstep
