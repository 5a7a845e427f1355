// Finds what changed from one run to another, before and after a fix.
// Matches the findings of paired lanes (run_match.h), and says which lane trains better or worse
// and which layers lose another share of their values. Decides nothing about whether the numerics
// are the same bit by bit: that is analysis/check.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/findings/finding.h"
#include "analysis/pair/run_match.h"
#include "analysis/run/health.h"
#include "analysis/run/outcome.h"

namespace lockstep {

// By the outcomes, the best first: fine, unclear, worse, stalled, broke. Not comparable: one of
// them was not judged.
enum class LaneChange : uint8_t { kSame, kBetter, kWorse, kNotComparable };
LaneChange change_of(Verdict before, Verdict after);
std::string_view to_string(LaneChange change);

// Indices; -1: the finding is in the other run only.
struct FindingPair {
  int before = -1, after = -1;
};
// Matches findings of one kind at one site; in another graph, at a site with the same label. First
// those that are gone, then the new ones, then those in both; each in the order of its run.
std::vector<FindingPair> match_findings(const std::vector<Finding>& before,
                                        const std::vector<Finding>& after,
                                        const SiteTable& before_sites, const SiteTable& after_sites,
                                        bool same_graph);

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
  LanePair lanes;
  LaneChange change = LaneChange::kNotComparable;
  std::vector<FindingPair> findings = {};
  std::vector<ShareChange> shares = {};
};
struct RunComparison {
  std::string graph_difference;           // empty: the same places
  std::vector<SetupDifference> settings;  // `run`: after, `baseline`: before
  std::vector<EnvironmentDifference> environment;
  std::vector<LaneComparison> lanes;  // the gravest change first
  bool same_graph() const { return graph_difference.empty(); }
};

}  // namespace lockstep
