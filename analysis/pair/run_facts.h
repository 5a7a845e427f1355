// What a run is a run of, as plain data: options, lanes, sites, parameters, graph, data. From a run
// file, or from a baseline's JSON, which keeps less. match_runs (run_match.h) compares two of them.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "src/record/run/run_reader.h"

namespace lockstep {

// The attribute of nodes where the model itself sets autocast: "on", "off".
inline constexpr char kAutocastAttribute[] = "autocast";

struct NodeFacts {
  std::string op, layer, source_line;
  std::map<std::string, std::string> attributes;  // printed; "autocast" where the model sets it
};
struct SiteFacts {
  std::string layer, op, role, point;
  int index = 0;
  std::string shape, source_line;
  bool is_of_same_kind(const SiteFacts& o) const {
    return op == o.op && role == o.role && point == o.point && index == o.index;
  }
  std::string label() const;  // "conv1 conv2d grad_weight output"
};
struct ParameterFacts {
  std::string name, shape;
};
struct LaneFacts {
  std::string name, engine, target, policy_text;
};

struct RunFacts {
  RunOptions options;
  int64_t steps = 0;  // recorded
  std::map<std::string, std::string> environment;
  std::vector<LaneFacts> lanes;  // the reference first
  std::vector<NodeFacts> nodes;  // the forward pass
  std::vector<SiteFacts> sites;
  std::vector<ParameterFacts> parameters;
  std::string data, batches_hash;
  ScriptLines lines = {};
  // Only for a run file.
  std::string step_graph;  // JSON
  SiteTable site_table;
};
RunFacts facts_of(const RunFile& run);
// Twins are noise; a check and its baseline do without.
RunFacts facts_without_twins(const RunFile& run);

std::vector<LaneFacts> lane_facts(std::span<const LaneInfo> lanes);
std::vector<SiteFacts> site_facts(const SiteTable& table);
std::vector<ParameterFacts> parameter_facts(const Graph& graph);

}  // namespace lockstep
