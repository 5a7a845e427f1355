// Finds the recorded decisions that a lane's own values would have taken otherwise.
// Gives the worst place of a lane, among those where it differs more often than the reference does:
// the loop that was captured may have chosen in another format than FP32, too. Of ties, where the
// kernel's order decides, half count.
#pragma once

#include <optional>
#include <span>

#include "analysis/findings/finding.h"
#include "emulation/stats/decision_stats.h"
#include "src/graph/site.h"

namespace lockstep {

// The least share of flipped decisions that is reported, and the fewest flips: one of three is not
// a share.
inline constexpr double kFlippedShare = 0.01;
inline constexpr uint64_t kFewestFlips = 2;

// Both by site id, summed over the run. Sets lane, site, share, counts and value (the largest
// margin); the caller sets the steps.
std::optional<Finding> find_flipped_decisions(int lane, const SiteTable& sites,
                                              std::span<const DecisionStats> decisions,
                                              std::span<const DecisionStats> of_reference);

}  // namespace lockstep
