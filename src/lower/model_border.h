// The border between a model and its loss.
// A policy's [model] casts the model's inputs, and the values that the loss reads from the model.
// Knows nothing of the other casts.
#pragma once

#include <set>
#include <string>

#include "src/graph/ir.h"
#include "src/policy/policy.h"

namespace lockstep {

class ModelBorder {
 public:
  // Throws: InputError if the policy has a [model] and the graph has no loss op.
  ModelBorder(const Policy& policy, const Graph& graph);

  // The format of a forward node's operand after it crosses a border, or null.
  const Format* format(const Node& node, const std::string& value_id) const;

  // Whether the loss reads the value through one cast. The gradient's parts from the loss are then
  // summed in that cast's format, like a parameter's in the cached cast's.
  bool is_crossed_by(const std::string& value_id) const;

 private:
  const Policy& policy_;
  const Graph& graph_;
  std::set<std::string> model_;  // nodes (and externals) that feed a loss op, by id
};

}  // namespace lockstep
