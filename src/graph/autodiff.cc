// See autodiff.h. The walk and the bookkeeping; what an op's gradient is stands in its own file.
#include "src/graph/autodiff.h"

#include <algorithm>
#include <charconv>

#include "src/core/error.h"
#include "src/graph/infer.h"
#include "src/graph/op.h"

namespace lockstep {
namespace {

// One above the largest number in the forward nodes' ids (n0, n1, ...).
int next_number(const Graph& graph) {
  int next = 0;
  for (const Node& node : graph.nodes) {
    int number = -1;
    std::from_chars(node.id.data() + 1, node.id.data() + node.id.size(), number);
    next = std::max(next, number + 1);
  }
  return next;
}

// The forward node a join of gradients of `value` belongs to.
const Node& partner_of(const Graph& graph, const std::string& value) {
  if (const Node* producer = graph.producer_of(value)) return *producer;
  const auto uses = [&](const Node& node) {
    return std::find(node.inputs.begin(), node.inputs.end(), value) != node.inputs.end();
  };
  return *std::find_if(graph.nodes.begin(), graph.nodes.end(), uses);
}

}  // namespace

std::string GradientBuilder::output_gradient(const Node& node, size_t index) const {
  const auto found = gradient_.find(output_id(node, index));
  return found == gradient_.end() ? "" : found->second;
}

bool GradientBuilder::needs_gradient(const Node& node, size_t operand) const {
  const auto found = needs_.find(node.inputs.at(operand));
  return found != needs_.end() && found->second;
}

std::string GradientBuilder::add_node(const Node& node, std::string_view op,
                                      std::vector<std::string> inputs, Attributes attributes,
                                      std::vector<int> gradient_operands) {
  Node added;
  added.id = "n" + std::to_string(next_id_++);
  added.op = op;
  added.inputs = std::move(inputs);
  added.attributes = std::move(attributes);
  added.layer = layer_of(graph_, node);
  added.source_line = node.source_line;
  added.forward_node = node.id;
  std::vector<TensorType> types;
  for (const std::string& value : added.inputs) types.push_back(graph_.type_of(value));
  added.outputs = infer_outputs(added, types);
  for (const int operand : gradient_operands) {
    added.gradient_of.push_back(operand < 0 ? "" : node.inputs.at(static_cast<size_t>(operand)));
  }
  const std::string id = added.id;
  std::vector<std::string> gradients;
  for (size_t i = 0; i < added.outputs.size(); ++i) gradients.push_back(output_id(added, i));
  graph_.nodes.push_back(std::move(added));
  for (size_t i = 0; i < gradient_operands.size(); ++i) {
    if (gradient_operands[i] < 0) continue;
    pass_gradient(node, static_cast<size_t>(gradient_operands[i]), gradients[i]);
  }
  return id;
}

void GradientBuilder::pass_gradient(const Node& node, size_t operand, const std::string& gradient) {
  if (needs_gradient(node, operand)) accumulate(node.inputs[operand], gradient, node);
}

void GradientBuilder::accumulate(const std::string& value, const std::string& gradient,
                                 const Node& forward) {
  const auto [entry, first] = gradient_.emplace(value, gradient);
  if (first) return;
  const Node& partner = partner_of(graph_, value);
  const Parameter* parameter = graph_.parameter_of(value);
  Node join;
  join.id = "n" + std::to_string(next_id_++);
  join.op = "add";
  join.inputs = {entry->second, gradient};
  join.outputs = {graph_.type_of(value)};
  join.layer =
      parameter && !parameter->layer.empty() ? parameter->layer : layer_of(graph_, partner);
  join.source_line = partner.source_line;
  join.forward_node = partner.id;
  join.gradient_of = {value};
  entry->second = join.id;
  graph_.nodes.push_back(std::move(join));
}

Graph differentiate(const Graph& forward) {
  validate(forward);
  const std::string who = "graph '" + forward.name + "'";
  if (!forward.producer_of(forward.loss)) {
    throw InputError(who + ": the loss must be a node's output, is '" + forward.loss + "'");
  }
  if (std::any_of(forward.nodes.begin(), forward.nodes.end(),
                  [](const Node& node) { return node.is_backward(); })) {
    throw InputError(who + ": has backward nodes already");
  }
  Graph step = forward;
  step.inputs.push_back({std::string(kLossSeedId), std::string(kLossSeedId), TensorType{}});
  GradientBuilder builder(step);
  builder.next_id_ = next_number(forward);
  for (const Parameter& parameter : forward.parameters) {
    builder.needs_["p:" + parameter.name] = parameter.requires_grad;
  }
  for (const Node& node : forward.nodes) {
    bool needed = false;
    if (find_op(node.op).differentiable_outputs > 0 && !node.no_grad) {
      for (size_t i = 0; i < node.inputs.size(); ++i) needed |= builder.needs_gradient(node, i);
    }
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      builder.needs_[output_id(node, i)] = needed && node.outputs[i].element == ElementType::kFloat;
    }
  }
  if (builder.needs_[forward.loss]) builder.gradient_[forward.loss] = kLossSeedId;
  for (auto node = forward.nodes.rbegin(); node != forward.nodes.rend(); ++node) {
    const OpDef& op = find_op(node->op);
    bool reached = false;
    for (size_t i = 0; i < node->outputs.size(); ++i) {
      if (builder.output_gradient(*node, i).empty()) continue;
      reached = true;
      if (i < static_cast<size_t>(op.differentiable_outputs)) continue;
      throw InputError("node '" + node->id + "' (" + node->op +
                       "): no gradient flows through output " + std::to_string(i) +
                       ", but the loss depends on it");
    }
    if (!reached) continue;
    if (!op.vjp) {
      throw InputError("node '" + node->id + "' (" + node->op +
                       "): the op has no gradient, but the "
                       "loss depends on it");
    }
    op.vjp(builder, *node);
  }
  for (const Parameter& parameter : forward.parameters) {
    const auto found = builder.gradient_.find("p:" + parameter.name);
    if (found != builder.gradient_.end()) step.gradients[parameter.name] = found->second;
  }
  return step;
}

}  // namespace lockstep
