// See nonfinite_counts.h.
#include "analysis/run/nonfinite_counts.h"

#include <cmath>

namespace lockstep {

NonfiniteCounts nonfinite_counts(const SiteRecord& site) {
  if (site.stats.count == 0) return {};
  return {.to_infinity = site.stats.to_infinity,
          .nan = site.stats.nan,
          .came_in = std::isinf(site.stats.abs_max)};
}

std::vector<NonfiniteCounts> nonfinite_counts(std::span<const SiteRecord> sites) {
  std::vector<NonfiniteCounts> counts;
  counts.reserve(sites.size());
  for (const SiteRecord& site : sites) counts.push_back(nonfinite_counts(site));
  return counts;
}

int64_t first_nonfinite_loss(const std::vector<double>& loss,
                             const std::vector<ScalerRecord>& scalers) {
  for (size_t i = 0; i < loss.size(); ++i) {
    if (!std::isfinite(loss[i]) && !scalers[i].skipped) return static_cast<int64_t>(i);
  }
  return -1;
}

bool has_nonfinite_loss(const LaneStep& lane) {
  if (!lane.alive) return true;
  return !std::isfinite(lane.loss) && !is_skipped(lane);
}

}  // namespace lockstep
