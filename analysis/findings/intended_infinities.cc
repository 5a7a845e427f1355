// See intended_infinities.h.
#include "analysis/findings/intended_infinities.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace lockstep {

IntendedInfinities::IntendedInfinities(const SiteTable& sites) : readers_(sites.sites.size()) {
  for (const Site& site : sites.sites) {
    for (const int32_t feed : site.feeds) readers_[static_cast<size_t>(feed)].push_back(site.id);
  }
}

// From the last site to the first: readers have larger ids.
std::vector<bool> IntendedInfinities::absorbed(const StepEvidence& lane,
                                               const std::vector<bool>& bad) const {
  std::vector<bool> out(bad.size(), false);
  for (size_t i = bad.size(); i-- > 0;) {
    if (lane.nan[i] > 0 || readers_[i].empty()) continue;
    out[i] = std::ranges::all_of(readers_[i], [&](int32_t reader) {
      const auto r = static_cast<size_t>(reader);
      // A reader that the lane does not measure passes the question on to its own readers.
      if (lane.count[r] == 0 || bad[r]) return static_cast<bool>(out[r]);
      return lane.err_sq[r] <= kAbsorbedErrorShare * lane.ref_sq[r];
    });
  }
  return out;
}

// Most steps are finite throughout: only others need the reference.
StepCounts IntendedInfinities::read_counts(const RunFile& run, int lane, int64_t step) const {
  StepCounts counts = lockstep::read_counts(run, lane, step);
  std::vector<bool> bad(counts.size());
  for (size_t i = 0; i < bad.size(); ++i) bad[i] = counts.nonfinite(i);
  if (std::ranges::count(bad, true) == 0) return counts;
  const StepEvidence mine = read_evidence(run, lane, step), reference = read_evidence(run, 0, step);
  std::vector<bool> left_out(bad.size());
  for (size_t i = 0; i < bad.size(); ++i) {
    left_out[i] = bad[i] && reference.nonfinite(i);
    bad[i] = bad[i] && !left_out[i];
  }
  const std::vector<bool> disappears = absorbed(mine, bad);
  for (size_t i = 0; i < bad.size(); ++i) {
    if (!left_out[i] && !(bad[i] && disappears[i])) continue;
    counts.to_infinity[i] = 0;
    if (std::isinf(counts.abs_max[i])) counts.abs_max[i] = std::numeric_limits<double>::quiet_NaN();
  }
  return counts;
}

}  // namespace lockstep
