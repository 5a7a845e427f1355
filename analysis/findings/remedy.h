// What can be done about a finding, as data: words for the report, and edits that can be run.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/graph/ir.h"
#include "src/policy/policy.h"
#include "src/train/run_options.h"

namespace lockstep {

struct FindingContext;

// One way of doing it: lines to add to the policy file, or a change of the run itself.
struct RemedyEdit {
  std::string words;         // "fc2 linear in fp32"
  std::string toml = {};     // tables and rules; merged into the policy by policy_edit.h
  std::string pytorch = {};  // the line to change there; "": the policy says all
  std::vector<std::string> rewrites = {};  // RunOptions::rewrites
  HyperValues changes = {};  // RunOptions::loop_changes; of built-in models its own options

  bool changes_run() const { return !rewrites.empty() || !changes.empty(); }
};

// What edits are made for: the lane's policy, the step graph and the options of its run.
struct EditContext {
  const FindingContext& found;
  const Policy& policy;
  const Graph& step;
  const RunOptions& options;
};
using MakeEdits = std::vector<RemedyEdit> (*)(const EditContext&);

struct Remedy {
  std::string words;          // "this op in fp32 or bf16"
  MakeEdits edits = nullptr;  // the smallest first; null: no edit of policy, options or graph
  bool told = true;           // false: reaches further than the report suggests
};

}  // namespace lockstep
