// The model is every node that feeds a loss op; all other forward nodes are the loss.
#include "src/lower/model_border.h"

#include <algorithm>

#include "src/core/error.h"
#include "src/graph/composed_ops.h"
#include "src/graph/op.h"

namespace lockstep {

ModelBorder::ModelBorder(const Policy& policy, const Graph& graph)
    : policy_(policy), graph_(graph) {
  if (policy.model_input == nullptr && policy.model_output == nullptr) return;
  bool has_loss = false;
  for (auto node = graph.nodes.rbegin(); node != graph.nodes.rend(); ++node) {
    if (node->is_backward()) continue;
    const bool reads_model = is_loss(*node, find_op(node->op));
    has_loss = has_loss || reads_model;
    if (!reads_model && !model_.contains(node->id)) continue;
    for (const std::string& id : node->inputs) model_.insert(split_value_id(id).first);
  }
  if (has_loss) return;
  throw InputError("policy '" + policy.label() + "' on " + graph.name +
                       ": [model] needs a loss op to separate the model from its loss",
                   "end the graph in cross_entropy, mse_loss or another loss, or leave [model] "
                   "out");
}

const Format* ModelBorder::format(const Node& node, const std::string& value_id) const {
  const bool in_model = model_.contains(node.id);
  const bool is_input = std::ranges::any_of(
      graph_.inputs, [&](const GraphInput& input) { return input.id == value_id; });
  if (is_input) return in_model ? policy_.model_input : nullptr;
  return !in_model && is_crossed_by(value_id) ? policy_.model_output : nullptr;
}

bool ModelBorder::is_crossed_by(const std::string& value_id) const {
  return policy_.model_output != nullptr && model_.contains(split_value_id(value_id).first) &&
         graph_.producer_of(value_id) != nullptr;
}

}  // namespace lockstep
