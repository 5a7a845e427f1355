// Look-ups in a graph. The checks are in validate.cc.
#include "src/graph/ir.h"

#include <array>
#include <charconv>
#include <stdexcept>

#include "src/core/error.h"
#include "src/core/find_row.h"

namespace lockstep {
namespace {

struct RoleName {
  Role role;
  std::string_view name;
};
constexpr std::array<RoleName, 11> kRoles = {{
    {Role::kInput, "input"},
    {Role::kWeight, "weight"},
    {Role::kActivation, "activation"},
    {Role::kGradActivation, "grad_activation"},
    {Role::kGradWeight, "grad_weight"},
    {Role::kAccumulator, "accumulator"},
    {Role::kMasterWeight, "master_weight"},
    {Role::kOptimizerState, "optimizer_state"},
    {Role::kUpdate, "update"},
    {Role::kBuffer, "buffer"},
    {Role::kLoss, "loss"},
}};

// The number after "n", or -1.
int64_t node_number(std::string_view id) {
  if (id.size() < 2 || id[0] != 'n') return -1;
  int64_t number = -1;
  const auto [end, error] = std::from_chars(id.data() + 1, id.data() + id.size(), number);
  return error == std::errc() && end == id.data() + id.size() ? number : -1;
}

const Node* find_node(const Graph& graph, std::string_view id) {
  // Built-in graphs number their nodes from 0: try that place first.
  const int64_t guess = node_number(id);
  if (guess >= 0 && guess < static_cast<int64_t>(graph.nodes.size()) &&
      graph.nodes[static_cast<size_t>(guess)].id == id) {
    return &graph.nodes[static_cast<size_t>(guess)];
  }
  for (const Node& node : graph.nodes) {
    if (node.id == id) return &node;
  }
  return nullptr;
}

}  // namespace

std::string_view to_string(Role role) {
  return kRoles.at(static_cast<size_t>(role)).name;
}

Role find_role(std::string_view name) {
  return find_row("role", name, kRoles).role;
}

std::pair<std::string, int> split_value_id(std::string_view value_id) {
  const size_t dot = value_id.find('.');
  if (dot == std::string_view::npos || node_number(value_id.substr(0, dot)) < 0) {
    return {std::string(value_id), 0};
  }
  int index = -1;
  const char* last = value_id.data() + value_id.size();
  const auto [end, error] = std::from_chars(value_id.data() + dot + 1, last, index);
  if (error != std::errc() || end != last || index < 0) return {std::string(value_id), 0};
  return {std::string(value_id.substr(0, dot)), index};
}

std::string output_id(const Node& node, size_t index) {
  return index == 0 ? node.id : node.id + "." + std::to_string(index);
}

const Node* Graph::producer_of(std::string_view value_id) const {
  if (value_id.empty() || value_id[0] != 'n') return nullptr;
  const auto [id, index] = split_value_id(value_id);
  const Node* node = find_node(*this, id);
  return node && static_cast<size_t>(index) < node->outputs.size() ? node : nullptr;
}

const Node& Graph::node(std::string_view id) const {
  const Node* node = find_node(*this, id);
  if (!node) throw std::out_of_range("graph has no node '" + std::string(id) + "'");
  return *node;
}

const Parameter* Graph::parameter_of(std::string_view value_id) const {
  if (!value_id.starts_with("p:")) return nullptr;
  for (const Parameter& parameter : parameters) {
    if (parameter.name == value_id.substr(2)) return &parameter;
  }
  return nullptr;
}

const TensorType& Graph::type_of(std::string_view value_id) const {
  if (const Parameter* parameter = parameter_of(value_id)) return parameter->type;
  if (const Node* node = producer_of(value_id)) {
    return node->outputs[static_cast<size_t>(split_value_id(value_id).second)];
  }
  if (value_id.starts_with("b:")) {
    for (const Buffer& buffer : buffers) {
      if (buffer.name == value_id.substr(2)) return buffer.type;
    }
  }
  if (value_id.starts_with("c:")) {
    for (const Constant& constant : constants) {
      if (constant.name == value_id.substr(2)) return constant.type;
    }
  }
  for (const GraphInput& input : inputs) {
    if (input.id == value_id) return input.type;
  }
  throw std::out_of_range("graph has no value '" + std::string(value_id) + "'");
}

bool is_gradient(const Graph& step, std::string_view value_id) {
  if (is_seed(value_id)) return true;
  const Node* producer = step.producer_of(value_id);
  return producer != nullptr && producer->is_backward();
}

std::string to_string(const TensorType& type) {
  return (type.element == ElementType::kFloat ? "f32" : "i32") + to_string(type.shape);
}

std::string layer_of(const Graph& graph, const Node& node) {
  if (!node.layer.empty()) return node.layer;
  if (!node.is_backward()) return node.op;
  const Node& forward = graph.node(node.forward_node);
  return forward.layer.empty() ? forward.op : forward.layer;
}

std::vector<std::string> loss_names(const Graph& graph) {
  constexpr std::string_view kPrefix = "loss/";
  std::vector<std::string> names;
  for (const auto& [name, value] : graph.outputs) {
    if (name.starts_with(kPrefix) && graph.type_of(value) == TensorType{}) {
      names.push_back(name.substr(kPrefix.size()));
    }
  }
  return names;
}

}  // namespace lockstep
