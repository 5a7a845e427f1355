// What is not finite at the sites of one step, as plain data by site id.
// The analysis may take from it what is intended (analysis/findings/intended_infinities.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/execute/site_record.h"
#include "src/train/step_record.h"

namespace lockstep {

struct NonfiniteCounts {
  uint64_t to_infinity = 0, nan = 0;  // values, as TensorStats
  bool came_in = false;               // an infinity entered the rounding

  // A NaN or an infinity was seen entering or leaving the rounding.
  bool any() const { return to_infinity > 0 || nan > 0 || came_in; }
};
// Nothing at a site without values. A step that only counts sees no infinity coming in.
NonfiniteCounts nonfinite_counts(const SiteRecord& site);
std::vector<NonfiniteCounts> nonfinite_counts(std::span<const SiteRecord> sites);

// The first step that was not skipped and whose loss is not finite, -1: none. A skipped step's
// values are discarded, so only values of other steps can harm the lane; from this step on every
// site holds NaN, which would hide what happened before. Requires: of one length.
int64_t first_nonfinite_loss(const std::vector<double>& loss,
                             const std::vector<ScalerRecord>& scalers);
// Whether this step of the lane has such a loss; a dead lane has none that is finite.
bool has_nonfinite_loss(const LaneStep& lane);

}  // namespace lockstep
