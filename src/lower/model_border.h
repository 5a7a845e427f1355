// Where does the model end and its loss begin?
// A policy's [model] casts what the model reads from outside, and what the loss reads of the model.
// Knows nothing of the other casts.
#pragma once

#include <set>
#include <string>

#include "src/graph/ir.h"
#include "src/policy/policy.h"

namespace lockstep {

class ModelBorder {
 public:
  // Throws: InputError where the policy has a [model] and the graph no loss op.
  ModelBorder(const Policy& policy, const Graph& graph);

  // What a forward node's operand becomes where it crosses a border, or null.
  const Format* format(const Node& node, const std::string& value_id) const;

  // Whether the loss reads the value through one cast: the parts of its gradient that come from the
  // loss add up in that cast's format, as those of a parameter do in the cached cast's.
  bool is_crossed_by(const std::string& value_id) const;

 private:
  const Policy& policy_;
  const Graph& graph_;
  std::set<std::string> model_;  // nodes (and externals) that feed a loss op, by id
};

}  // namespace lockstep
