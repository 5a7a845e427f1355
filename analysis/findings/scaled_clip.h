// Finds gradients that were clipped while they still held the loss scale.
// The recorded norm is the one that was compared with the clip: if it is about the loss scale times
// the reference's, the unscaling came too late, and every clipped update is too short by that
// factor. And norms that overflow although every gradient is finite: the factor 1 / inf makes every
// gradient zero.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

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

// By step: the norms; where the lane took the step and all its gradients were finite; and the
// factor by which the lane's norm is larger than the true one. `format`: of the gradients. Returns:
// a finding if the norm was infinite in one of these steps.
std::optional<Finding> find_overflowed_norm(int lane, std::span<const double> norms,
                                            std::span<const double> of_reference,
                                            const std::vector<bool>& finite, double scale,
                                            const std::string& format);

}  // namespace lockstep
