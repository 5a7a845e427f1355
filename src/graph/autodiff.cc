// See autodiff.h. The walk and the bookkeeping. Each op's gradient is in the op's own file.
#include "src/graph/autodiff.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "src/core/error.h"
#include "src/core/text.h"
#include "src/graph/infer.h"
#include "src/graph/op.h"
#include "src/graph/validate.h"

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

// The forward partner of a node that joins gradients of `value`.
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
  added.torch_op = node.torch_op;
  added.forward_node = node.id;
  added.pass = pass_;
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
  join.pass = pass_;
  join.gradient_of = {value};
  entry->second = join.id;
  graph_.nodes.push_back(std::move(join));
}

class Differentiation {
 public:
  explicit Differentiation(const Graph& forward) : forward_(forward), step_(forward) {
    validate(forward);
    if (!forward.producer_of(forward.loss)) {
      throw InputError(who() + ": the loss must be a node's output, is '" + forward.loss + "'");
    }
    if (std::any_of(forward.nodes.begin(), forward.nodes.end(),
                    [](const Node& node) { return node.is_backward(); })) {
      throw InputError(who() + ": already has backward nodes");
    }
    next_id_ = next_number(forward);
    find_needs();
  }

  std::string who() const { return "graph '" + forward_.name + "'"; }

  // Adds the nodes of one pass, and its seed as an input; returns its gradients by parameter.
  std::map<std::string, std::string> add_pass(const std::string& loss, const std::string& seed,
                                              int pass) {
    step_.inputs.push_back({seed, seed, TensorType{}});
    GradientBuilder builder(step_);
    builder.next_id_ = next_id_;
    builder.pass_ = pass;
    builder.needs_ = needs_;
    if (needs_[loss]) builder.gradient_[loss] = seed;
    for (auto node = forward_.nodes.rbegin(); node != forward_.nodes.rend(); ++node) {
      if (is_reached(builder, *node)) find_op(node->op).vjp(builder, *node);
    }
    next_id_ = builder.next_id_;
    step_.adjoints = builder.gradient_;
    std::map<std::string, std::string> gradients;
    for (const Parameter& parameter : forward_.parameters) {
      const auto found = builder.gradient_.find("p:" + parameter.name);
      if (found != builder.gradient_.end()) gradients[parameter.name] = found->second;
    }
    return gradients;
  }

  Graph& step() { return step_; }

 private:
  void find_needs() {
    for (const Parameter& parameter : forward_.parameters) {
      needs_["p:" + parameter.name] = parameter.requires_grad;
    }
    for (const GraphInput& input : forward_.inputs) needs_[input.id] = input.requires_grad;
    for (const Node& node : forward_.nodes) {
      bool needed = false;
      if (find_op(node.op).differentiable_outputs > 0 && !node.no_grad) {
        for (const std::string& input : node.inputs) needed |= needs_[input];
      }
      for (size_t i = 0; i < node.outputs.size(); ++i) {
        needs_[output_id(node, i)] = needed && node.outputs[i].element == ElementType::kFloat;
      }
    }
  }

  // Whether a gradient has arrived at the node. Throws: InputError if it cannot flow further.
  static bool is_reached(const GradientBuilder& builder, const Node& node) {
    const OpDef& op = find_op(node.op);
    bool reached = false;
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (builder.output_gradient(node, i).empty()) continue;
      reached = true;
      if (i < static_cast<size_t>(op.differentiable_outputs)) continue;
      throw InputError("node '" + node.id + "' (" + node.op +
                       "): no gradient flows through output " + std::to_string(i) +
                       ", but the loss depends on it");
    }
    if (reached && !op.vjp) {
      throw InputError("node '" + node.id + "' (" + node.op +
                       "): the op has no gradient, but the loss depends on it");
    }
    return reached;
  }

  const Graph& forward_;
  Graph step_;
  std::map<std::string, bool> needs_;  // value id -> a parameter feeds it
  int next_id_ = 0;
};

namespace {

// The values whose sum the loss is: splits its `add` nodes until it reaches values in `terms`.
std::vector<std::string> addends(const Graph& graph, const std::string& value,
                                 const std::set<std::string>& terms) {
  const Node* node = graph.producer_of(value);
  const bool is_sum = node != nullptr && find_op(node->op).meaning.is_sum &&
                      node->inputs.size() == 2 && double_attribute(*node, "alpha", 1) == 1;
  if (terms.contains(value) || !is_sum) return {value};
  std::vector<std::string> found;
  for (const std::string& input : node->inputs) {
    const std::vector<std::string> own = addends(graph, input, terms);
    found.insert(found.end(), own.begin(), own.end());
  }
  return found;
}

}  // namespace

Graph differentiate(const Graph& forward) {
  Differentiation work(forward);
  work.step().gradients = work.add_pass(forward.loss, std::string(kLossSeedId), 0);
  return std::move(work.step());
}

Graph differentiate_per_loss(const Graph& forward) {
  Differentiation work(forward);
  const std::vector<std::string> names = loss_names(forward);
  std::set<std::string> terms;
  for (const std::string& name : names) terms.insert(forward.outputs.at("loss/" + name));
  std::vector<std::string> added = addends(forward, forward.loss, terms);
  std::ranges::sort(added);
  if (names.size() < 2 || terms.size() != names.size() || !std::ranges::equal(added, terms)) {
    throw InputError(work.who() +
                         ": a backward pass per loss needs a loss that is the sum of two or "
                         "more named losses (outputs loss/NAME), named here: " +
                         (names.empty() ? "none" : join(names, ", ")),
                     "one backward pass for the whole loss (--backward joint)");
  }
  Graph& step = work.step();
  for (size_t i = 0; i < names.size(); ++i) {
    BackwardPass pass;
    pass.name = names[i];
    pass.loss = forward.outputs.at("loss/" + names[i]);
    pass.seed = std::string(kPassSeedPrefix) + names[i];
    pass.gradients = work.add_pass(pass.loss, pass.seed, static_cast<int>(i));
    step.gradients.insert(pass.gradients.begin(), pass.gradients.end());
    step.passes.push_back(std::move(pass));
  }
  step.adjoints.clear();  // of the last pass, not of the whole loss
  return std::move(step);
}

}  // namespace lockstep
