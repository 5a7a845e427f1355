// Judges the loss scaler by the course of its scale.
// Ordinary: some skipped steps at the start, until the scale fits, and single ones later. A fault:
// the scale keeps falling, falls to 1 or below (no scaling is left, and gradients overflow without
// any), or the scaler gives up. Steps skipped because the forward pass overflows
// are that overflow's consequence, not the scaler's fault.
#pragma once

#include <span>
#include <vector>

#include "analysis/findings/finding.h"
#include "src/graph/site.h"
#include "src/record/run/lane_info.h"
#include "src/train/step_record.h"

namespace lockstep {

// Probing is over by the middle of the run. After it, a scaler skips one step each time it has
// grown, at the scale of the skip before: those do not count.
inline constexpr double kSkipRateLimit = 0.25;  // of the steps in the second half of the run
inline constexpr int64_t kFewestLateSkips = 2;  // one is an outlier batch
inline constexpr int64_t kFewestScaledSteps = 8;
inline constexpr int64_t kFewestSkips = 4;  // in a row from the first step on, without a step taken

// `skips_by_site`: how often a site was the backward origin of a skipped step. `origins`: the
// lane's findings of non-finite values.
std::vector<Finding> scale_findings(const LaneInfo& info, int lane,
                                    std::span<const ScalerRecord> scalers,
                                    const std::vector<int64_t>& skips_by_site,
                                    const SiteTable& sites, std::span<const Finding> origins);

}  // namespace lockstep
