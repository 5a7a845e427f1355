// What tallies need to know of a run before its first step, whether it is played back from a file
// or in progress (LiveFindings).
#pragma once

#include <algorithm>
#include <cmath>
#include <span>

#include "src/graph/site.h"
#include "src/record/run/lane_info.h"
#include "src/record/run/run_reader.h"
#include "src/train/run_options.h"

namespace lockstep {

struct RunView {
  const SiteTable& sites;
  const RunOptions& options;
  std::span<const LaneInfo> lanes;  // the reference first

  // Whether a lane and the reference begin the step with the same weights.
  bool has_same_weights(int64_t step) const {
    return step == 0 || options.mode == LaneMode::kSynced;
  }
};
// Valid as long as the file is open.
inline RunView view_of(const RunFile& run) {
  return {.sites = run.sites(), .options = run.options(), .lanes = run.lanes()};
}

// Whether a scaler ever multiplied the loss by another number than 1, or wanted to.
inline bool uses_loss_scale(std::span<const ScalerRecord> scaler) {
  return std::ranges::any_of(scaler, [](const ScalerRecord& s) {
    return (std::isfinite(s.scale) && s.scale != 1) || (s.skipped && s.found_inf);
  });
}

}  // namespace lockstep
