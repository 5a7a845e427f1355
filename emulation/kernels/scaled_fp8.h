// The factor that brings a tensor into the range of an 8-bit format.
// One FP32 scale per tensor. The tensor is multiplied by it and rounded with saturation; its
// consumer divides by it. The scale follows from the largest magnitude, amax, of this tensor
// (current scaling) or of earlier steps (delayed scaling). The kernel abs_max finds the amax. Pure
// functions of state and amax; no knowledge of steps, layers or the origin of amax.
//
//   value = round(x * scale) * (1 / scale)         each operation rounded to FP32
//
// Source: NVIDIA Transformer Engine 2.x, `common/recipe`: nvte_compute_scale_from_amax and
// nvte_delayed_scaling_recipe_amax_and_scale_update_after_reduction (used by its PyTorch modules);
// recipes Float8CurrentScaling and DelayedScaling.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "emulation/format/block_format.h"
#include "emulation/kernels/args/quantize_spec.h"
#include "emulation/kernels/kernel_set.h"

namespace lockstep {

// The scale of a tensor from its own amax: max_finite / amax in FP32.
//   amax below amax_epsilon counts as amax_epsilon; amax zero, infinite or NaN gives 1;
//   a quotient beyond FP32 gives FP32's largest number.
struct CurrentScaling {
  float amax_epsilon = 0;
  bool power_of_two = false;  // the scale's fraction bits are cut
};
float current_scale(float amax, const Format& format, const CurrentScaling& scaling);

// The scale under the block scales of a format with e4m3 scales: 448 * max_finite / amax in FP32,
// so that the largest block scale is the largest e4m3 number; special cases as current_scale.
// Requires: format.scale is kE4m3.
// Source: arXiv 2509.25149, appendix on quantization; Transformer Engine's NVFP4BlockScaling.
float two_level_scale(float amax, const BlockFormat& format);

// Which amax of the history counts.
enum class AmaxChoice : uint8_t {
  kMax,         // the largest, NaN left out
  kMostRecent,  // the last one
};
struct AmaxChoiceInfo {
  AmaxChoice choice;
  std::string_view name, help;
};
std::span<const AmaxChoiceInfo> amax_choices();
AmaxChoice find_amax_choice(std::string_view name);  // Throws: InputError with a did-you-mean

struct DelayedScaling {
  int history_length = 1024;
  AmaxChoice choice = AmaxChoice::kMax;
  int margin = 0;  // powers of two left free above the expected amax
};

// Before the first step: scale 1, an empty history.
struct DelayedScaleState {
  float scale = 1;             // for the next tensor
  std::vector<float> history;  // the last amaxes, oldest first, at most history_length

  bool operator==(const DelayedScaleState&) const = default;
};

// The state for the next tensor, after a tensor with this amax was rounded with state.scale.
//   1. amax = 0 (no value was seen): the state is unchanged, history included.
//   2. amax joins the history; the oldest is removed if there are more than history_length.
//   3. chosen amax finite and > 0: scale = (max_finite * 2^-margin) / chosen, FP32's largest number
//      where that is infinite. Otherwise the scale is unchanged: with kMax, an infinity keeps it so
//      until it leaves the history.
// Requires: history_length >= 1.
DelayedScaleState delayed_scale_update(DelayedScaleState state, float amax, const Format& format,
                                       const DelayedScaling& scaling);

// after[i] = round(before[i] * scale) * (1 / scale) in FP32, a NaN as the one quiet NaN. `after`
// may be `before`; `stats` may be null. The statistics are those of the scaled values, before and
// after their rounding. spec.format is used as given: pass one that saturates. Requires: scale
// finite, > 0.
void quantize_scaled(const KernelSet& kernels, std::span<const float> before,
                     std::span<float> after, float scale, const QuantizeSpec& spec,
                     TensorStats* stats);

}  // namespace lockstep
