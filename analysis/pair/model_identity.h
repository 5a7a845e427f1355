// What a run is a run of: graph, parameters, hyper-parameters, lanes and data, as plain data that a
// baseline keeps. Two of them are matched by structure, not by the hash of a file: layers may have
// been renamed, ops fused or added. What differs is named, and only what has no counterpart is left
// out of a comparison.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>
#include "src/record/run/run_reader.h"

namespace lockstep {

struct NodeIdentity {
  std::string op, layer, source_line;
  std::map<std::string, std::string> attributes;  // printed; "autocast" where the model sets it
};
struct SiteIdentity {
  std::string layer, op, role, point, value;  // value: the parameter's name at its own sites, or ""
  int index = 0;
  std::string shape, source_line;
  bool is_of_same_kind(const SiteIdentity& o) const {
    return op == o.op && role == o.role && point == o.point && index == o.index;
  }
  std::string label() const;  // "conv1 conv2d grad_weight output"
};
struct ParameterIdentity {
  std::string name, shape;
};
struct LaneIdentity {
  std::string name, engine, target, policy_text;
};
struct ModelIdentity {
  std::vector<NodeIdentity> nodes;  // the forward pass
  std::vector<SiteIdentity> sites;
  std::vector<ParameterIdentity> parameters;
  std::vector<std::pair<std::string, std::string>> settings;  // that affect the numbers, in words
  std::vector<LaneIdentity> lanes;
  std::string data, batches_hash;
  uint64_t seed = 0;
};
ModelIdentity identity_of(const RunFile& run);
std::string shape_text(const Shape& shape);  // "64x1x5x5", "scalar"

// A number of the loop or of an op that is not the baseline's: as good as it may be, not what was
// accepted.
struct SettingChange {
  std::string text;                    // "layer_norm eps: 1e-05 -> 1e-06 in 12 layers (ln1, ...)"
  std::string layer, op, source_line;  // the first; "": of the loop
};

// By index in the baseline: the index in the run, -1: none.
struct Counterparts {
  std::vector<int> sites, parameters, lanes;
  std::vector<std::string>
      changes;  // what differs, one line each: "layer_norm eps 1e-05 -> 1e-06 in 12 layers"
  std::vector<SettingChange> settings;  // those of `changes` that are numbers of the loop or of ops
  std::vector<std::string> no_match;    // what the baseline has and the run lacks, one line each
  std::vector<std::string> extra;       // what only the run has
  size_t sites_matched = 0;
};
Counterparts find_counterparts(const ModelIdentity& baseline, const ModelIdentity& run);

}  // namespace lockstep
