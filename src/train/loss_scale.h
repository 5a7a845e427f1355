// How does a loss scale move?
// Scalers are pure state machines, (state, found_inf) -> state, one row per kind. They know nothing
// of tensors or of where found_inf comes from.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "src/graph/policy.h"

namespace lockstep {

struct LossScaleState {
  float scale = 1;
  int32_t growth_tracker = 0;
  bool operator==(const LossScaleState&) const = default;
};

struct LossScaler {
  std::string_view name, help, source;
  bool checks_finite;  // unscale looks for non-finite gradients and skips the step
  LossScaleState (*initial)(const LossScaleSpec&);
  // The state after a step whose gradients had (or had not) a non-finite value.
  LossScaleState (*update)(const LossScaleSpec&, LossScaleState, bool found_inf);
};

std::span<const LossScaler> loss_scalers();
const LossScaler& find_loss_scaler(std::string_view name);  // Throws: InputError, did-you-mean

}  // namespace lockstep
