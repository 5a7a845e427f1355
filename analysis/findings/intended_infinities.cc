// See intended_infinities.h.
#include "analysis/findings/intended_infinities.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace lockstep {

bool has_same_weights(const RunFile& run, int64_t step) {
  return step == 0 || run.options().mode == LaneMode::kSynced;
}

IntendedInfinities::IntendedInfinities(const SiteTable& sites)
    : readers_(sites.sites.size()),
      has_absorbed_(sites.sites.size()),
      has_shared_(sites.sites.size()) {
  for (const Site& site : sites.sites) {
    for (const int32_t feed : site.feeds) readers_[static_cast<size_t>(feed)].push_back(site.id);
  }
}

// From the last site to the first: readers have larger ids.
std::vector<bool> IntendedInfinities::absorbed(bool same_weights, const StepEvidence& lane,
                                               const std::vector<bool>& bad) {
  std::vector<bool> out(bad.size(), false);
  for (size_t i = bad.size(); i-- > 0;) {
    if (lane.nan[i] > 0 || readers_[i].empty()) continue;
    out[i] = std::ranges::all_of(readers_[i], [&](int32_t reader) {
      const auto r = static_cast<size_t>(reader);
      // A reader that the lane does not measure passes the question on to its own readers.
      if (lane.count[r] == 0 || bad[r]) return static_cast<bool>(out[r]);
      return has_absorbed_[i] || lane.err_sq[r] <= kAbsorbedErrorShare * lane.ref_sq[r];
    });
    if (same_weights && bad[i] && out[i]) has_absorbed_[i] = true;
  }
  return out;
}

// Most steps are finite throughout: only others need the evidence of the reference.
StepCounts IntendedInfinities::read_counts(const RunFile& run, int lane, int64_t step) {
  StepCounts counts = lockstep::read_counts(run, lane, step);
  std::vector<bool> bad(counts.size());
  for (size_t i = 0; i < bad.size(); ++i) bad[i] = counts.nonfinite(i);
  if (lane == 0 || std::ranges::count(bad, true) == 0) return counts;
  if (!counts.is_measured) {
    for (size_t i = 0; i < bad.size(); ++i) {
      if (has_absorbed_[i] || has_shared_[i]) counts.to_infinity[i] = 0;
      if (has_shared_[i]) counts.nan[i] = 0;
    }
    return counts;
  }
  const StepEvidence mine = read_evidence(run, lane, step), reference = read_evidence(run, 0, step);
  std::vector<bool> shared(bad.size());
  for (size_t i = 0; i < bad.size(); ++i) {
    shared[i] = bad[i] && reference.nonfinite(i);
    bad[i] = bad[i] && !shared[i];
  }
  const std::vector<bool> disappears = absorbed(has_same_weights(run, step), mine, bad);
  for (size_t i = 0; i < bad.size(); ++i) {
    const bool left_out = bad[i] && disappears[i];
    if (left_out) counts.to_infinity[i] = 0;
    if (shared[i]) {
      has_shared_[i] = true;
      counts.to_infinity[i] -= std::min(counts.to_infinity[i], reference.to_infinity[i]);
      counts.nan[i] -= std::min(counts.nan[i], reference.nan[i]);
    }
    const bool came_in = std::isinf(counts.abs_max[i]) && (left_out || shared[i]);
    if (came_in) counts.abs_max[i] = std::numeric_limits<double>::quiet_NaN();
  }
  return counts;
}

}  // namespace lockstep
