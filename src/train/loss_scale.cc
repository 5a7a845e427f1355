// The table of loss scalers. Arithmetic follows PyTorch's GradScaler to the bit: the scale is held
// in FP32, its products with the factors are formed in double and rounded once. Source:
// torch/amp/grad_scaler.py and the aten amp_update_scale_ kernel.
#include "src/train/loss_scale.h"

#include <cmath>
#include <string>
#include <vector>

#include "src/core/error.h"

namespace lockstep {
namespace {

LossScaleState initial_one(const LossScaleSpec&) {
  return {1, 0};
}
LossScaleState initial_scale(const LossScaleSpec& spec) {
  return {static_cast<float>(spec.init_scale), 0};
}
LossScaleState stay(const LossScaleSpec&, LossScaleState state, bool) {
  return state;
}

// There is no smallest and no largest scale, except that a growth to infinity is not taken; the
// tracker restarts either way.
LossScaleState update_torch(const LossScaleSpec& spec, LossScaleState state, bool found_inf) {
  const double scale = state.scale;
  if (found_inf) return {static_cast<float>(scale * spec.backoff_factor), 0};
  if (state.growth_tracker + 1 < spec.growth_interval) {
    return {state.scale, state.growth_tracker + 1};
  }
  const float grown = static_cast<float>(scale * spec.growth_factor);
  return {std::isfinite(grown) ? grown : state.scale, 0};
}

const LossScaler kLossScalers[] = {
    {"none", "scale 1; gradients are not checked and no step is ever skipped",
     "plain training without a GradScaler", false, initial_one, stay},
    {"static",
     "scale init_scale, for ever; a step with a non-finite gradient is skipped, as by a GradScaler "
     "with growth and backoff factor 1",
     "Micikevicius et al. 2018, §3.2 (constant factor); the skip: torch GradScaler.step", true,
     initial_scale, stay},
    {"torch-dynamic",
     "a step with a non-finite gradient is skipped and multiplies the scale by backoff_factor; "
     "growth_interval steps without one multiply it by growth_factor; no minimum",
     "torch/amp/grad_scaler.py, GradScaler.update", true, initial_scale, update_torch},
};

}  // namespace

std::span<const LossScaler> loss_scalers() {
  return kLossScalers;
}

const LossScaler& find_loss_scaler(std::string_view name) {
  std::vector<std::string> names;
  for (const LossScaler& scaler : kLossScalers) {
    if (scaler.name == name) return scaler;
    names.emplace_back(scaler.name);
  }
  throw InputError("loss scaler '" + std::string(name) + "': unknown", did_you_mean(name, names));
}

}  // namespace lockstep
