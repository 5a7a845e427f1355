// The lowering: one pass over the nodes in order. A forward node decides its formats and stores
// them for its backward partners, which only look them up.
#include "src/lower/lower.h"

#include <algorithm>
#include <set>

#include "src/graph/composed_ops.h"
#include "src/graph/recorded_backward.h"
#include "src/lower/checks.h"
#include "src/lower/gradient_join.h"
#include "src/lower/gradient_scales.h"
#include "src/lower/inputs.h"
#include "src/lower/model_border.h"
#include "src/lower/node_formats.h"
#include "src/lower/node_instructions.h"
#include "src/lower/program_builder.h"
#include "src/lower/rule_match.h"
#include "src/policy/find_policy.h"

namespace lockstep {
namespace {

// What a forward node stores for its backward partners. Lists are by operand.
struct Lowered {
  std::vector<int> value = {};               // program value that the op reads
  std::vector<const Format*> gradient = {};  // the operand's format by the op's class
  std::vector<const Format*> seen = {};      // Operand::seen
  // Of scaled factors, the format in which a product reads them that does not scale them.
  std::vector<const Format*> unscaled = {};
  std::vector<const Format*> inner = {};  // OpCall::inner_formats
  const Format* compute = nullptr;  // the op's format by rule or inside a composed op, or null
};

// What stays in FP32, by value id: the parameters and buffers that [storage] keep_fp32 keeps, and
// constants that composed ops make. A node without parameters of its own (a norm that is not
// affine) is cast with the rest, buffers included, as in apex and torch's fp16_utils.
std::set<std::string> kept_in_fp32(const Graph& graph, const std::vector<std::string>& ops) {
  std::set<std::string> kept;
  for (const Node& node : graph.nodes) {
    if (is_own_constant(node)) kept.insert(node.inputs.begin(), node.inputs.end());
    if (node.is_backward() || std::ranges::find(ops, node.op) == ops.end()) continue;
    const bool is_affine = std::ranges::any_of(
        node.inputs, [&](const std::string& id) { return graph.parameter_of(id) != nullptr; });
    if (is_affine) kept.insert(node.inputs.begin(), node.inputs.end());
  }
  return kept;
}

class Lowering {
 public:
  explicit Lowering(const LowerInputs& in)
      : in_(in),
        composed_inner_(composed_inner_nodes(in.graph)),
        rules_(in.policy, in.graph, in.sites),
        scaled_(in.policy, in.graph),
        border_(in.policy, in.graph),
        checks_(in_),
        formats_(in_, border_, builder_),
        scales_(in.graph, in.sites, builder_),
        ops_(in_, rules_, scaled_, builder_, checks_) {}

  Program run() {
    builder_.program().scaling = in_.policy.scaling;
    builder_.program().rounds_dropout_scale = in_.policy.rounds_dropout_scale;
    builder_.program().cpu_threads = in_.policy.cpu_threads;
    builder_.program().flash_kernel = in_.policy.flash_kernel;
    add_externals();
    for (size_t i = 0; i < in_.graph.nodes.size(); ++i) {
      const Node& node = in_.graph.nodes[i];
      builder_.start_node(i);
      if (!node.is_backward()) {
        lower_forward(node);
      } else if (is_join(in_.graph, node)) {
        lower_join(node, in_, border_, builder_, scales_, ops_);
      } else if (is_recorded(in_.graph, node)) {
        lower_recorded(node);
      } else {
        lower_backward(node);
      }
      set_seed_formats(node);
    }
    add_results();
    checks_.throw_if_any(rules_, scaled_, builder_);
    return std::move(builder_.program());
  }

 private:
  void add_externals() {
    const Policy& policy = in_.policy;
    const std::set<std::string> kept = kept_in_fp32(in_.graph, policy.keep_fp32);
    const bool names_formats = std::ranges::any_of(
        in_.graph.parameters, [](const Parameter& p) { return !p.format.empty(); });
    const std::map<std::string, int32_t> sites = in_.sites.storage_sites();
    const auto storage = [&](const std::string& id, const std::string& captured,
                             const Format* format) {
      const auto site = sites.find(id);
      const Format* rule = site == sites.end() ? nullptr : rules_.at_site(site->second).format;
      if (rule != nullptr) return rule;
      if (kept.contains(id)) return &find_format("fp32");
      if (!policy.formats_as_captured || !names_formats) return format;
      return &find_format(captured.empty() ? "fp32" : captured);
    };
    for (const GraphInput& input : in_.graph.inputs) {
      builder_.add_external(input.id, input.type, storage(input.id, input.format, policy.input));
    }
    for (const Parameter& p : in_.graph.parameters) {
      const std::string id = "p:" + p.name;
      builder_.add_external(id, p.type, storage(id, p.format, policy.weight));
    }
    // What is narrow in a model with FP32 weights is a result that autocast made. Numbers of a
    // constant (a mask's) need not be numbers of another narrow format.
    const auto by_autocast = [&](const std::string& captured) {
      return policy.low != nullptr && !captured.empty() && !names_formats;
    };
    for (const Buffer& b : in_.graph.buffers) {
      const std::string id = "b:" + b.name;
      builder_.add_external(
          id, b.type, storage(id, b.format, by_autocast(b.format) ? policy.low : policy.buffer));
    }
    for (const Constant& c : in_.graph.constants) {
      const std::string id = "c:" + c.name;
      const bool low = by_autocast(c.format) && &find_format(c.format) == policy.low;
      builder_.add_external(id, c.type, storage(id, c.format, low ? policy.low : policy.buffer));
    }
    const std::string seed(kLossSeedId);
    if (!in_.graph.gradients.empty() && in_.graph.passes.empty() && !builder_.has(seed)) {
      builder_.add_external(seed, TensorType{}, policy.input);
    }
  }

  // The gradient of a loss is in the loss's format, known after the node that makes the loss.
  void set_seed_formats(const Node& node) {
    const auto set_format = [&](const std::string& loss, const std::string& seed) {
      if (split_value_id(loss).first != node.id || !builder_.has(seed)) return;
      builder_.set_format(builder_.stored(seed), builder_.stored_format(loss));
    };
    set_format(in_.graph.loss, std::string(kLossSeedId));
    for (const BackwardPass& pass : in_.graph.passes) set_format(pass.loss, pass.seed);
  }

  void lower_forward(const Node& node) {
    const OpDef& op = find_op(node.op);
    // Check the rules first, so that one that matches here counts as used.
    const Format* rule = rules_.compute(node);
    const Format* compute = composed_inner_.contains(node.id) ? in_.container : rule;
    const bool autocast = !rules_.autocast_off(node) && node.autocast != AutocastRegion::kOff;
    NodeFormats formats = formats_.of_forward(node, op, compute, autocast);
    Lowered& used = lowered_[node.id];
    used.gradient = std::move(formats.gradients);
    // A bias has no part in the gradients.
    if (op.formats.rounds_inside != RoundsInside::kBias) used.inner = formats.inner;
    used.compute = compute;
    std::vector<int> inputs;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const int value = builder_.stored(node.inputs[i]);
      const Operand operand = ops_.read(node, op, i, {value, value, formats.operands[i]}, compute);
      inputs.push_back(operand.value);
      used.value.push_back(operand.unscaled >= 0 ? operand.unscaled : operand.value);
      used.seen.push_back(operand.seen);
      const bool is_scaled = operand.unscaled >= 0;
      used.unscaled.push_back(is_scaled ? unscaled_format(formats, i) : nullptr);
    }
    if (!autocast) checks_.check_region(node, op, used.gradient);
    scales_.set_forward(node, rules_.loss_scale(node));
    ops_.add(node, op, std::move(inputs), {formats.outputs, used.seen, formats.inner, compute});
  }

  void lower_backward(const Node& node) {
    const OpDef& op = find_op(node.op);
    const Node& forward = in_.graph.node(node.forward_node);
    const Lowered& used = lowered_.at(forward.id);
    const double scale = scales_.of_node(forward.id);
    std::vector<int> inputs;
    std::vector<const Format*> operands, seen;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const std::string& id = node.inputs[i];
      const bool is_of_backward = is_gradient(in_.graph, id);
      const size_t place = operand_index(forward, id);
      const bool is_saved = place < forward.inputs.size();
      OperandSource from{};
      from.value = from.original = is_of_backward ? scales_.scaled(id, scale) : builder_.stored(id);
      if (is_of_backward) {
        if (!is_intermediate(id, node)) from.target = output_format(forward, id);
      } else if (is_saved) {
        from.value = used.value[place];
        from.target = used.unscaled[place];
      }
      const Operand operand = ops_.read(node, op, i, from, used.compute);
      inputs.push_back(operand.value);
      // A saved operand is read as in the forward op, unless a rule casts it anew.
      const bool as_saved =
          is_saved && !operand.by_rule && operand.unscaled < 0 && used.unscaled[place] == nullptr;
      seen.push_back(as_saved ? used.seen[place] : operand.seen);
      operands.push_back(from.target != nullptr ? from.target : builder_.format_of(from.value));
    }
    std::vector<const Format*> outputs;
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      const Format* first =
          outputs.empty() ? formats_.followed(node, op, operands) : outputs.front();
      const Format* own = gradient_format(node, k, forward, used);
      outputs.push_back(own != nullptr ? own : formats_.output(node, op, k, used.compute, first));
    }
    ops_.add(node, op, std::move(inputs), {outputs, seen, used.inner, used.compute});
    scales_.set_backward(node, scale);
  }

  // A node of a user's own backward pass runs as a forward op does: in the formats of its operands,
  // outside of autocast unless that pass opens it.
  void lower_recorded(const Node& node) {
    const OpDef& op = find_op(node.op);
    const Format* compute = composed_inner_.contains(node.id) ? in_.container : nullptr;
    const NodeFormats formats =
        formats_.of_forward(node, op, compute, node.autocast == AutocastRegion::kOn);
    std::vector<int> inputs;
    std::vector<const Format*> seen;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const int value = builder_.stored(node.inputs[i]);
      const Operand operand = ops_.read(node, op, i, {value, value, formats.operands[i]}, compute);
      inputs.push_back(operand.value);
      seen.push_back(operand.seen);
    }
    ops_.add(node, op, std::move(inputs), {formats.outputs, seen, formats.inner, compute});
    scales_.set_backward(node, scales_.of_node(node.forward_node));
  }

  // The format of an operand before [scaling] narrows it.
  static const Format* unscaled_format(const NodeFormats& formats, size_t operand) {
    const Format* cast = formats.operands[operand];
    return cast != nullptr ? cast : formats.stored[operand];
  }

  // The index of the node's operand that is this value; the number of operands: none is.
  static size_t operand_index(const Node& node, const std::string& id) {
    const auto found = std::ranges::find(node.inputs, id);
    return static_cast<size_t>(found - node.inputs.begin());
  }

  // True for a value made by a backward node's siblings (a product still to be summed to a shape).
  bool is_intermediate(const std::string& id, const Node& node) const {
    const Node* producer = in_.graph.producer_of(id);
    return producer != nullptr && producer->is_backward() && !is_join(in_.graph, *producer) &&
           producer->forward_node == node.forward_node;
  }

  // The format of the output of `forward` that `gradient` belongs to.
  const Format* output_format(const Node& forward, const std::string& gradient) const {
    std::string output = output_id(forward, 0);
    if (const Node* producer = in_.graph.producer_of(gradient)) {
      const size_t index = static_cast<size_t>(split_value_id(gradient).second);
      const std::string& of =
          index < producer->gradient_of.size() ? producer->gradient_of[index] : output;
      if (split_value_id(of).first == forward.id) output = of;
    }
    return builder_.stored_format(output);
  }

  // A gradient has the format of its operand; null: output k is not the gradient of an operand.
  static const Format* gradient_format(const Node& node, size_t k, const Node& forward,
                                       const Lowered& used) {
    if (k >= node.gradient_of.size() || node.gradient_of[k].empty()) return nullptr;
    const size_t operand = operand_index(forward, node.gradient_of[k]);
    return operand < used.gradient.size() ? used.gradient[operand] : nullptr;
  }

  void add_results() {
    Program& program = builder_.program();
    program.results["loss"] = builder_.stored(in_.graph.loss);
    for (const auto& [name, id] : in_.graph.outputs) {
      program.results["output:" + name] = builder_.stored(id);
    }
    // The factor of a layer's own loss scale is divided out in the parameter's format.
    const auto add_gradient = [&](const std::string& result, const std::string& name,
                                  const std::string& id) {
      program.results[result] = scales_.unscaled(id, builder_.stored_format("p:" + name));
    };
    for (const auto& [name, id] : in_.graph.gradients) add_gradient("grad:" + name, name, id);
    for (const BackwardPass& pass : in_.graph.passes) {
      for (const auto& [name, id] : pass.gradients) {
        add_gradient(pass_gradient_result(pass, name), name, id);
      }
    }
    for (const Mutation& m : in_.graph.mutations) {
      program.results["mutation:" + m.buffer] = builder_.stored(m.value);
    }
  }

  LowerInputs in_;
  std::set<std::string> composed_inner_;  // nodes inside composed ops, FP32 under every policy
  RuleBook rules_;
  ScaledOperands scaled_;
  ModelBorder border_;
  ProgramBuilder builder_;
  LowerChecks checks_;
  ClassFormats formats_;
  LayerScales scales_;
  OpLowering ops_;
  std::map<std::string, Lowered> lowered_;  // by forward node id
};

}  // namespace

Program lower(const Graph& step, const SiteTable& sites, const Policy& policy,
              bool container_is_fp64) {
  if (container_is_fp64) {
    const Policy truth = truth_policy();
    return Lowering({step, sites, truth, &find_format("fp64")}).run();
  }
  return Lowering({step, sites, policy, &find_format("fp32")}).run();
}

}  // namespace lockstep
