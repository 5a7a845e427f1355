// See recorded_backward.h.
#include "src/graph/recorded_backward.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "src/core/error.h"
#include "src/graph/infer.h"
#include "src/graph/op.h"

namespace lockstep {
namespace {

constexpr std::string_view kCast = "cast_backward";

void require(bool ok, const Node& node, const std::string& problem) {
  if (!ok) throw InputError(fmt::format("node '{}' ({}): {}", node.id, node.op, problem));
}

std::string operand_name(size_t operand) {
  return fmt::format("x{}", operand);
}
std::string gradient_name(size_t output) {
  return fmt::format("dy{}", output);
}

// A backward op trusts its operands, which only autodiff makes; random numbers and running
// statistics belong to a forward pass.
bool may_be_recorded(const OpDef& op) {
  return op.name.find("_backward") == std::string_view::npos && op.meaning.draws_mask == nullptr &&
         !op.meaning.has_running_statistics && op.infer != infer_custom_gradient;
}

class Checker {
 public:
  Checker(const Node& node, std::span<const TensorType> inputs) : node_(node) {
    for (size_t i = 0; i < inputs.size(); ++i) types_[operand_name(i)] = inputs[i];
    for (size_t k = 0; k < result_count(node); ++k) types_[gradient_name(k)] = inputs[k];
  }

  void check() {
    for (const Node& inner : node_.backward->nodes) check_node(inner);
    const std::vector<std::string>& gradients = node_.backward->gradients;
    require(gradients.size() == node_.inputs.size(), node_,
            fmt::format("its backward pass names {} gradients, must name one for each of the {} "
                        "operands (\"\": none)",
                        gradients.size(), node_.inputs.size()));
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].empty()) check_gradient(i, gradients[i]);
    }
  }

  static size_t result_count(const Node& node) {
    return static_cast<size_t>(int_attribute(node, "results", 1));
  }

 private:
  void check_node(const Node& inner) {
    const std::string who = fmt::format("its backward pass, node {} ({})", inner.id, inner.op);
    require(split_value_id(inner.id + ".1").second == 1, node_, who + ": must be named n<NUMBER>");
    require(may_be_recorded(find_op(inner.op)), node_, who + ": the op cannot stand there");
    require(!inner.is_backward() && inner.gradient_of.empty(), node_,
            who + ": names a forward_node or gradient_of");
    std::vector<TensorType> inputs;
    for (const std::string& value : inner.inputs) inputs.push_back(type_of(value, who));
    require(infer_outputs(inner, inputs) == inner.outputs, node_,
            who + ": its outputs are not those of its op");
    for (size_t k = 0; k < inner.outputs.size(); ++k) {
      require(types_.emplace(output_id(inner, k), inner.outputs[k]).second, node_,
              who + ": defined twice");
    }
  }

  void check_gradient(size_t operand, const std::string& gradient) {
    const TensorType& type = type_of(operand_name(operand), "");
    const TensorType& found = type_of(gradient, "its backward pass");
    require(
        operand >= result_count(node_) && type.element == ElementType::kFloat, node_,
        fmt::format("operand {} can have no gradient, is a result or an integer tensor", operand));
    require(found == type, node_,
            fmt::format("the gradient of operand {} is {}, must be {}", operand, to_string(found),
                        to_string(type)));
  }

  const TensorType& type_of(const std::string& value, const std::string& who) const {
    const auto found = types_.find(value);
    require(found != types_.end(), node_,
            fmt::format("{}: value '{}' is not defined before its use", who, value));
    return found->second;
  }

  const Node& node_;
  std::map<std::string, TensorType> types_;  // by value id of the pass
};

// Values of the pass that the gradients wanted depend on.
std::set<std::string> needed_values(const RecordedBackward& pass, std::set<std::string> needed) {
  for (auto inner = pass.nodes.rbegin(); inner != pass.nodes.rend(); ++inner) {
    bool is_needed = false;
    for (size_t k = 0; k < inner->outputs.size(); ++k) {
      is_needed |= needed.contains(output_id(*inner, k));
    }
    if (is_needed) needed.insert(inner->inputs.begin(), inner->inputs.end());
  }
  return needed;
}

}  // namespace

std::vector<TensorType> infer_custom_gradient(const Node& node,
                                              std::span<const TensorType> inputs) {
  const int64_t results = int_attribute(node, "results", 1);
  require(results >= 1 && results < static_cast<int64_t>(inputs.size()), node,
          fmt::format("attribute 'results' is {}, must be in [1, {}): the first operands are the "
                      "function's results, the others its operands",
                      results, inputs.size()));
  require(node.backward != nullptr, node, "its backward pass is missing");
  for (size_t k = 0; k < static_cast<size_t>(results); ++k) {
    require(inputs[k].element == ElementType::kFloat, node,
            fmt::format("result {} is an integer tensor, must be floating", k));
  }
  Checker(node, inputs).check();
  return {inputs.begin(), inputs.begin() + results};
}

void custom_gradient_vjp(GradientBuilder& builder, const Node& node) {
  const RecordedBackward& pass = *node.backward;
  std::set<std::string> wanted;
  for (size_t i = 0; i < pass.gradients.size(); ++i) {
    if (!pass.gradients[i].empty() && builder.needs_gradient(node, i)) {
      wanted.insert(pass.gradients[i]);
    }
  }
  const std::set<std::string> needed = needed_values(pass, wanted);
  std::map<std::string, std::string> value_of;  // value id of the pass -> of the step graph
  for (size_t i = 0; i < node.inputs.size(); ++i) value_of[operand_name(i)] = node.inputs[i];
  for (size_t k = 0; k < node.outputs.size(); ++k) {
    const std::string dy = builder.output_gradient(node, k);
    if (!needed.contains(gradient_name(k))) continue;
    value_of[gradient_name(k)] =
        dy.empty() ? builder.add_node(node, "no_gradient_backward", {output_id(node, k)}, {}, {-1})
                   : builder.add_node(node, kCast, {dy}, {}, {-1});
  }
  for (const Node& inner : pass.nodes) {
    bool is_needed = false;
    std::vector<std::string> inputs, outputs;
    for (size_t k = 0; k < inner.outputs.size(); ++k) {
      is_needed |= needed.contains(output_id(inner, k));
    }
    if (!is_needed) continue;
    for (const std::string& value : inner.inputs) inputs.push_back(value_of.at(value));
    const std::string id = builder.add_node(node, inner.op, inputs, inner.attributes,
                                            std::vector<int>(inner.outputs.size(), -1));
    builder.set_region(inner.autocast);
    for (size_t k = 0; k < inner.outputs.size(); ++k) {
      value_of[output_id(inner, k)] = k == 0 ? id : fmt::format("{}.{}", id, k);
    }
  }
  for (size_t i = 0; i < pass.gradients.size(); ++i) {
    if (pass.gradients[i].empty() || !builder.needs_gradient(node, i)) continue;
    builder.add_node(node, kCast, {value_of.at(pass.gradients[i])}, {}, {static_cast<int>(i)});
  }
}

bool is_recorded(const Graph& step, const Node& node) {
  if (!node.is_backward() || step.node(node.forward_node).backward == nullptr) return false;
  const bool is_of_autodiff =
      node.op.find("_backward") != std::string::npos ||
      std::ranges::any_of(node.gradient_of, [](const std::string& of) { return !of.empty(); });
  return !is_of_autodiff;
}

}  // namespace lockstep
