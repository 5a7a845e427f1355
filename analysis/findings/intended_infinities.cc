// See intended_infinities.h.
#include "analysis/findings/intended_infinities.h"

#include <algorithm>

namespace lockstep {

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
    if (lane[i].stats.nan > 0 || readers_[i].empty()) continue;
    out[i] = std::ranges::all_of(readers_[i], [&](int32_t reader) {
      const auto r = static_cast<size_t>(reader);
      // A reader that the lane does not measure passes the question on to its own readers.
      if (lane[r].stats.count == 0 || bad[r]) return static_cast<bool>(out[r]);
      return has_absorbed_[i] || lane[r].error.err_sq <= kAbsorbedErrorShare * lane[r].error.ref_sq;
    });
    if (same_weights && bad[i] && out[i]) has_absorbed_[i] = true;
  }
  return out;
}

// Most steps are finite throughout: only others need the evidence of the reference.
std::vector<NonfiniteCounts> IntendedInfinities::unintended(bool is_measured, bool same_weights,
                                                            std::span<const SiteRecord> lane,
                                                            std::span<const SiteRecord> reference) {
  std::vector<NonfiniteCounts> counts = nonfinite_counts(lane);
  std::vector<bool> bad(counts.size());
  for (size_t i = 0; i < bad.size(); ++i) bad[i] = counts[i].any();
  if (std::ranges::count(bad, true) == 0) return counts;
  if (!is_measured) {
    for (size_t i = 0; i < bad.size(); ++i) {
      if (has_absorbed_[i] || has_shared_[i]) counts[i].to_infinity = 0;
      if (has_shared_[i]) counts[i].nan = 0;
    }
    return counts;
  }
  std::vector<bool> shared(bad.size());
  const std::vector<NonfiniteCounts> in_reference = nonfinite_counts(reference);
  for (size_t i = 0; i < bad.size(); ++i) {
    shared[i] = bad[i] && in_reference[i].any();
    bad[i] = bad[i] && !shared[i];
  }
  const std::vector<bool> disappears = absorbed(same_weights, lane, bad);
  for (size_t i = 0; i < bad.size(); ++i) {
    const bool left_out = bad[i] && disappears[i];
    if (left_out) counts[i].to_infinity = 0;
    if (shared[i]) {
      has_shared_[i] = true;
      counts[i].to_infinity -= std::min(counts[i].to_infinity, in_reference[i].to_infinity);
      counts[i].nan -= std::min(counts[i].nan, in_reference[i].nan);
    }
    if (left_out || shared[i]) counts[i].came_in = false;
  }
  return counts;
}

}  // namespace lockstep
