// Scales of whole tensors, in FP32 arithmetic, and the three passes of a scaled rounding.
#include "emulation/kernels/scaled_fp8.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "emulation/format/power_of_two.h"
#include "emulation/kernels/quantize.h"
#include "src/core/error.h"
#include "src/core/find_row.h"

namespace lockstep {
namespace {

constexpr AmaxChoiceInfo kAmaxChoices[] = {
    {AmaxChoice::kMax, "max", "the largest of the history"},
    {AmaxChoice::kMostRecent, "most_recent", "that of the step before"},
};

constexpr float kLargest = std::numeric_limits<float>::max();

float finite_quotient(float largest, float amax) {
  const float scale = largest / amax;
  return std::isinf(scale) ? kLargest : scale;
}

}  // namespace

float two_level_scale(float amax, const BlockFormat& format) {
  static const double kLargestBlockScale = find_format("fp8_e4m3").max_finite;
  if (amax == 0 || !std::isfinite(amax)) return 1;
  return finite_quotient(static_cast<float>(kLargestBlockScale * format.element->max_finite), amax);
}

float current_scale(float amax, const Format& format, const CurrentScaling& scaling) {
  if (amax < scaling.amax_epsilon) amax = scaling.amax_epsilon;
  if (amax == 0 || !std::isfinite(amax)) return 1;
  const float scale = finite_quotient(static_cast<float>(format.max_finite), amax);
  if (!scaling.power_of_two) return scale;
  constexpr uint32_t kSignAndExponent = 0xff800000;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scale) & kSignAndExponent);
}

std::span<const AmaxChoiceInfo> amax_choices() {
  return kAmaxChoices;
}

AmaxChoice find_amax_choice(std::string_view name) {
  return find_row("amax choice", name, kAmaxChoices).choice;
}

DelayedScaleState delayed_scale_update(DelayedScaleState state, float amax, const Format& format,
                                       const DelayedScaling& scaling) {
  if (scaling.history_length < 1) {
    throw std::logic_error("delayed scaling: history_length " +
                           std::to_string(scaling.history_length) + ", >= 1 required");
  }
  if (amax == 0) return state;
  state.history.push_back(amax);
  if (state.history.size() > static_cast<size_t>(scaling.history_length)) {
    state.history.erase(state.history.begin());
  }
  float chosen = amax;
  if (scaling.choice == AmaxChoice::kMax) {
    chosen = 0;
    for (const float seen : state.history) chosen = seen > chosen ? seen : chosen;
  }
  if (chosen > 0 && std::isfinite(chosen)) {
    const double largest = format.max_finite * power_of_two(-scaling.margin);
    state.scale = finite_quotient(static_cast<float>(largest), chosen);
  }
  return state;
}

void quantize_scaled(const KernelSet& kernels, std::span<const float> before,
                     std::span<float> after, float scale, const QuantizeSpec& spec,
                     TensorStats* stats) {
  if (before.size() != after.size() || !(scale > 0) || !std::isfinite(scale)) {
    throw std::logic_error("quantize_scaled: " + std::to_string(before.size()) + " and " +
                           std::to_string(after.size()) + " elements, must be equal; scale " +
                           std::to_string(scale) + ", must be finite and > 0");
  }
  const auto count = static_cast<int64_t>(after.size());
  kernels.f32.scale(before.data(), scale, after.data(), count);
  quantize<float>(kernels, after, after, spec, stats);
  kernels.f32.scale(after.data(), 1 / scale, after.data(), count);
}

}  // namespace lockstep
