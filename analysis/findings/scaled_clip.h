// Finds gradients that were clipped while they still held the loss scale.
// The recorded norm is the one that was compared with the clip: if it is about the loss scale times
// the reference's, the unscaling came too late, and every clipped update is too short by that
// factor.
#pragma once

#include <optional>
#include <span>

#include "analysis/findings/finding.h"
#include "src/train/step_record.h"

namespace lockstep {

// A scale below this, or a norm further below scale x the reference's, may be another effect.
inline constexpr double kLeastClippedScale = 16, kNormSlack = 4;

// By step: the norms before clipping, NaN: none. `clip_norm`: 0: not clipped.
// Returns: a finding if at least half of the steps taken were clipped so.
std::optional<Finding> find_scaled_clip(int lane, double clip_norm, std::span<const double> norms,
                                        std::span<const double> of_reference,
                                        std::span<const ScalerRecord> scalers);

}  // namespace lockstep
