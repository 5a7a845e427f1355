// Are these two runs the same, and what belongs together in them? The one comparison of lanes,
// sites, parameters, settings, policies and environments, for check, exact comparison, baselines
// and the report of two runs. It decides nothing: its callers say what may differ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "analysis/pair/pairing.h"
#include "analysis/pair/policy_change.h"
#include "analysis/pair/run_facts.h"
#include "analysis/pair/settings.h"

namespace lockstep {

// kPlace: nothing else was left on either side, so one lane took the other's place.
enum class PairedBy : uint8_t { kName, kPolicy, kPlace };

// Indices; -1: the lane is in the other run only.
struct LanePair {
  int before = -1, after = -1;
  PairedBy by = PairedBy::kName;
  bool same_policy = true;  // the same text
  bool same_engine = true;  // and the same target
  PolicyChange policy = {};
  bool is_pair() const { return before >= 0 && after >= 0; }
  // One lane in both runs, perhaps renamed.
  bool is_same_lane() const { return is_pair() && by != PairedBy::kPlace; }
};
// By name, then by the text of the policy, then by place. Last come the lanes of one run only.
std::vector<LanePair> match_lanes(const std::vector<LaneFacts>& before,
                                  const std::vector<LaneFacts>& after);

// "": the run has no such entry.
struct EnvironmentDifference {
  std::string name, before, after;
};
std::vector<EnvironmentDifference> environment_differences(
    const std::map<std::string, std::string>& before,
    const std::map<std::string, std::string>& after);

struct RunMatch {
  std::vector<LanePair> lanes;
  Pairing nodes, sites, parameters;
  std::map<std::string, std::string> renamed_layers;  // before -> after
  std::vector<SetupDifference> settings;              // `run`: after, `baseline`: before
  std::vector<EnvironmentDifference> environment;
  // The sites are the same places of one step. Their shapes may differ: another batch size.
  bool same_places = false;
  // Only for two run files:
  bool same_step_graph = false;      // as JSON
  std::optional<size_t> other_site;  // the first that differs in place or shape
};
RunMatch match_runs(const RunFacts& before, const RunFacts& after);

}  // namespace lockstep
