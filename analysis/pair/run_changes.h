// Finds what changed from one run to another, before and after a fix.
// Matches their lanes and findings, and says which lane trains better or worse, which settings
// differ, and which layers lose another share of their values. Decides nothing about whether the
// numerics are the same bit by bit: that is analysis/check.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/findings/finding.h"
#include "analysis/pair/check_setup.h"
#include "analysis/pair/policy_change.h"
#include "analysis/run/health.h"
#include "analysis/run/outcome.h"
#include "src/record/run/lane_info.h"

namespace lockstep {

// By the outcomes, the best first: fine, unclear, worse, stalled, broke. Not comparable: one of
// them was not judged.
enum class LaneChange : uint8_t { kSame, kBetter, kWorse, kNotComparable };
LaneChange change_of(Verdict before, Verdict after);
std::string_view to_string(LaneChange change);

// Indices; -1: the lane or finding is in the other run only.
struct Match {
  int before = -1, after = -1;
};
// By name. If one candidate is left on either side, the two belong together: the lane was replaced.
std::vector<Match> match_lanes(std::span<const LaneInfo> before, std::span<const LaneInfo> after);

// Are the sites the same places of one step? Their shapes may differ: another batch size.
bool same_places(const SiteTable& before, const SiteTable& after);

// Matches findings of one kind at one site; in another graph, at a site with the same label. First
// those that are gone, then the new ones, then those in both; each in the order of its run.
std::vector<Match> match_findings(const std::vector<Finding>& before,
                                  const std::vector<Finding>& after, const SiteTable& before_sites,
                                  const SiteTable& after_sites, bool same_graph);

// A share of the values at a layer's worst site of a role.
struct ShareChange {
  std::string layer;
  Role role = Role::kActivation;
  std::string_view what;  // "to zero"
  double before = 0, after = 0;
};
// Those that changed by kLeastShareChange or more, the largest change first.
inline constexpr double kLeastShareChange = 1e-4;
std::vector<ShareChange> share_changes(const std::vector<LayerHealth>& before,
                                       const std::vector<LayerHealth>& after);

struct LaneComparison {
  Match lanes;
  LaneChange change = LaneChange::kNotComparable;
  std::vector<Match> findings = {};
  PolicyChange policy = {};
  std::vector<ShareChange> shares = {};
};
struct RunComparison {
  std::string graph_difference;  // empty: the same places
  std::vector<SetupDifference> settings;
  std::vector<LaneComparison> lanes;  // the gravest change first
  bool same_graph() const { return graph_difference.empty(); }
};

}  // namespace lockstep
