// The lowering itself: one pass over the nodes in order. A forward node decides its formats and
// leaves them for its backward partners, which only look them up.
#include "src/graph/lower.h"

#include <algorithm>
#include <stdexcept>

#include "src/core/error.h"
#include "src/graph/hardware_policy.h"
#include "src/graph/infer.h"
#include "src/graph/lower_rules.h"
#include "src/graph/program_builder.h"

namespace lockstep {
namespace {

// The format that holds both; two formats of which neither holds the other meet in FP32.
const Format* wider(const Format* a, const Format* b) {
  if (a == nullptr || contains(*b, *a)) return b;
  if (contains(*a, *b)) return a;
  return &find_format("fp32");
}

// What a forward node's operands became, for its backward partners.
struct Operands {
  std::vector<int> value;             // program value the op reads
  std::vector<const Format*> format;  // of the gradient: what the op's class made of the operand
  std::vector<const Format*> seen;    // the format the op computes with, wider than the value's
                                      // where widening needed no cast
};

// A value to read, and the format the op computes with.
struct Operand {
  int value;
  const Format* seen;
  bool by_rule = false;  // a rule says the format
};

// The truth lane: everything FP64, nothing to cast, no exceptions.
Policy truth_policy() {
  const Format* fp64 = &find_format("fp64");
  const Accumulator* fused = &find_accumulator("fp64_fused");
  Policy policy{};
  policy.weight = policy.buffer = policy.input = fp64;
  policy.gemm_accumulator = policy.reduce_accumulator = fused;
  policy.optimizer_arithmetic = policy.optimizer_state = fp64;
  return policy;
}

class Lowering {
 public:
  Lowering(const Graph& graph, const SiteTable& sites, const Policy& policy, bool is_fp64)
      : graph_(graph),
        sites_(sites),
        policy_(policy),
        rules_(policy, graph, sites),
        container_(&find_format(is_fp64 ? "fp64" : "fp32")) {}

  Program run() {
    add_externals();
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      builder_.start_node(i);
      if (!node.is_backward()) {
        lower_forward(node);
      } else if (is_join(node)) {
        lower_join(node);
      } else {
        lower_backward(node);
      }
      if (split_value_id(graph_.loss).first == node.id) set_seed_format();
    }
    add_results();
    check();
    return std::move(builder_.program());
  }

 private:
  const Format* stored_format(const std::string& id) const { return builder_.stored_format(id); }

  void add_externals() {
    for (const GraphInput& input : graph_.inputs) {
      builder_.add_external(input.id, input.type, policy_.input);
    }
    for (const Parameter& p : graph_.parameters) {
      builder_.add_external("p:" + p.name, p.type, policy_.weight);
    }
    for (const Buffer& b : graph_.buffers) {
      builder_.add_external("b:" + b.name, b.type, policy_.buffer);
    }
    for (const Constant& c : graph_.constants) {
      builder_.add_external("c:" + c.name, c.type, policy_.buffer);
    }
    const std::string seed(kLossSeedId);
    if (!graph_.gradients.empty() && !builder_.has(seed)) {
      builder_.add_external(seed, TensorType{}, policy_.input);
    }
  }
  // The gradient of the loss is in the loss's format.
  void set_seed_format() {
    const std::string seed(kLossSeedId);
    if (builder_.has(seed)) builder_.set_format(builder_.stored(seed), stored_format(graph_.loss));
  }

  // One operand of the node being lowered. `value`: as it would be read; `original`: before any
  // cast its forward partner made, which a rule starts from. `is_factor`: [gemm] operand applies.
  Operand read_operand(const Node& node, size_t operand, int value, int original,
                       const Format* target, bool is_factor) {
    if (builder_.format_of(value) == nullptr) return {value, nullptr};  // integers
    const Format* seen = target != nullptr ? target : builder_.format_of(value);
    const int32_t site = sites_.find(node.id, Point::kOperand, static_cast<int>(operand));
    Rounding rounding = policy_.rounding;
    const Format* factor = is_factor ? policy_.gemm_operand : nullptr;
    const bool is_narrowed = target != nullptr && !contains(*target, *builder_.format_of(value));
    if (factor != nullptr &&
        !contains(*factor, is_narrowed ? *target : *builder_.format_of(value))) {
      target = factor;
      rounding = policy_.gemm_operand_rounding;
    }
    if (factor != nullptr && !contains(*factor, *seen)) seen = factor;
    const RuleBook::SiteRule rule = rules_.at_site(site);
    if (rule.rounding) rounding = *rule.rounding;
    if (rule.format != nullptr) {
      target = seen = rule.format;
      value = original;
    }
    return {builder_.read(value, target, rounding, site), seen, rule.format != nullptr};
  }
  static bool is_factor(const Node& node, const OpDef& op, size_t operand) {
    if (op.is_factor != nullptr) return op.is_factor(node, operand);
    return op.has_gemm_accumulator &&
           std::find(op.product_operands.begin(), op.product_operands.end(),
                     static_cast<int>(operand)) != op.product_operands.end();
  }

  // --- the op instruction ---
  // `formats`: of every output before rules. `compute`: the forward node's compute rule, or null.
  // `seen`: formats the op computes with, by input.
  void add_op(const Node& node, const OpDef& op, std::vector<int> inputs,
              const std::vector<const Format*>& seen, const std::vector<const Format*>& formats,
              const Format* compute, const std::string& forward_op) {
    std::vector<ValueRounding> roundings;
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      const bool is_float = node.outputs[k].element == ElementType::kFloat;
      ValueRounding rounding{is_float ? formats[k] : nullptr, policy_.rounding, {}};
      if (is_float) {
        const int32_t site = sites_.find(node.id, Point::kOutput, static_cast<int>(k));
        const RuleBook::SiteRule rule = rules_.at_site(site);
        if (rule.format != nullptr) rounding.format = rule.format;
        if (rule.rounding) rounding.rounding = *rule.rounding;
        if (site >= 0) rounding.sites.push_back(site);
      }
      roundings.push_back(std::move(rounding));
    }
    Instruction& run = builder_.add_op(node, std::move(inputs), std::move(roundings));
    run.gemm_accumulator = wide_enough(policy_.gemm_accumulator, compute);
    run.reduce_accumulator = wide_enough(policy_.reduce_accumulator, compute);
    if (!op.has_gemm_accumulator) return;
    const Accumulator* by_rule = rules_.accumulator(node, forward_op);
    if (by_rule != nullptr) run.gemm_accumulator = by_rule;
    set_unit(node, op, run, seen, by_rule != nullptr);
    if (!contains(*run.gemm_accumulator->format, *container_)) {
      run.accumulator_site = sites_.find(node.id, Point::kAccumulator, 0);
    }
  }
  // The accumulator as it is for this op's factors.
  void set_unit(const Node& node, const OpDef& op, Instruction& run,
                const std::vector<const Format*>& seen, bool by_rule) {
    const auto a = static_cast<size_t>(op.product_operands.at(0));
    const auto b = static_cast<size_t>(op.product_operands.at(1));
    const AccumulatorChoice choice =
        choose_accumulator(policy_, *run.gemm_accumulator, by_rule, *seen.at(a), *seen.at(b));
    if (!choice.problem.empty()) {
      unit_problems_[choice.problem].push_back(layer_of(graph_, node) + " " + node.op);
    }
    run.gemm_accumulator = choice.accumulator;
    policy_unit_used_ = policy_unit_used_ || choice.accumulator == policy_.gemm_accumulator;
    run.factor_formats.assign(run.inputs.size(), nullptr);
    run.factor_formats[a] = choice.a;
    run.factor_formats[b] = choice.b;
  }
  // An op that a rule makes compute in FP32 does not sum in FP16.
  const Accumulator* wide_enough(const Accumulator* accumulator, const Format* compute) const {
    if (compute == nullptr || contains(*accumulator->format, *compute)) return accumulator;
    return &find_accumulator("fp32_fused");
  }

  // --- forward ---
  CastClass class_of(const OpDef& op) const {
    if (policy_.low == nullptr) return CastClass::kFollow;
    const auto listed = policy_.op_class.find(std::string(op.name));
    if (listed != policy_.op_class.end()) return listed->second;
    return policy_.unlisted.value_or(op.cast_class);
  }

  // The format that the node itself names for its output, or null.
  const Format* own_format(const Node& node, const OpDef& op) const {
    if (op.format_attribute.empty()) return nullptr;
    if (container_->is_fp64()) return container_;
    return &find_format(string_attribute(node, op.format_attribute, ""));
  }

  // What the node's class casts its operands to and gives its output; null: follow the operands.
  const Format* class_format(const Node& node, const OpDef& op, const Format* compute) const {
    if (compute != nullptr) return compute;
    switch (class_of(op)) {
      case CastClass::kLowPrecision:
        return policy_.low;
      case CastClass::kFp32:
        return &find_format("fp32");
      case CastClass::kPromote: {
        const Format* widest = policy_.low;
        for (const std::string& input : node.inputs) {
          if (const Format* format = stored_format(input)) widest = wider(widest, format);
        }
        return widest;
      }
      case CastClass::kFollow:
        return nullptr;
    }
    throw std::logic_error("class_format: unknown cast class");
  }

  void lower_forward(const Node& node) {
    const OpDef& op = find_op(node.op);
    const Format* compute = rules_.compute(node);
    const Format* own = own_format(node, op);
    const Format* target = own != nullptr ? nullptr : class_format(node, op, compute);
    Operands& used = operands_[node.id];
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const int value = builder_.stored(node.inputs[i]);
      const Format* cast_to = is_state(op, i) ? nullptr : target;
      used.format.push_back(cast_to != nullptr && builder_.format_of(value) != nullptr
                                ? cast_to
                                : builder_.format_of(value));
      const Operand operand = read_operand(node, i, value, value, cast_to,
                                           is_factor(node, op, i) && compute == nullptr);
      used.value.push_back(operand.value);
      used.seen.push_back(operand.seen);
    }
    std::vector<const Format*> formats;
    const Format* first = target != nullptr ? target : followed(op, used.format);
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      formats.push_back(
          k == 0 && own != nullptr ? own : extra_output_format(node, op, k, compute, first));
    }
    compute_[node.id] = compute;
    add_op(node, op, used.value, used.seen, formats, compute, node.op);
  }

  // Running statistics pass through an op in their buffer's format, whatever the op's class.
  static bool is_state(const OpDef& op, size_t operand) {
    return std::find(op.output_follows.begin(), op.output_follows.end(),
                     static_cast<int>(operand)) != op.output_follows.end();
  }

  // The promotion of the operands that decide; FP32 when there is none (all integers).
  const Format* followed(const OpDef& op, const std::vector<const Format*>& formats) const {
    const Format* widest = nullptr;
    for (size_t i = 0; i < formats.size(); ++i) {
      const bool decides = op.follow_operands.empty() ||
                           std::find(op.follow_operands.begin(), op.follow_operands.end(),
                                     static_cast<int>(i)) != op.follow_operands.end();
      if (decides && formats[i] != nullptr) widest = wider(widest, formats[i]);
    }
    return widest != nullptr ? widest : container_;
  }

  const Format* extra_output_format(const Node& node, const OpDef& op, size_t k,
                                    const Format* compute, const Format* first) const {
    constexpr int kAccumulatorFormat = -2;
    const int follows = k < op.output_follows.size() ? op.output_follows[k] : -1;
    if (follows == kAccumulatorFormat) {
      return wide_enough(policy_.reduce_accumulator, compute)->format;
    }
    return follows >= 0 ? stored_format(node.inputs.at(static_cast<size_t>(follows))) : first;
  }

  // --- backward ---
  bool is_join(const Node& node) const {
    return node.is_backward() && node.op == "add" && !node.gradient_of.empty() &&
           !node.gradient_of.front().empty() &&
           std::all_of(node.inputs.begin(), node.inputs.end(),
                       [&](const std::string& id) { return is_gradient(id); });
  }
  bool is_gradient(const std::string& id) const {
    if (id == kLossSeedId) return true;
    const Node* producer = graph_.producer_of(id);
    return producer != nullptr && producer->is_backward();
  }
  // True for what a backward node's own siblings made (a product still to be summed to a shape).
  bool is_intermediate(const std::string& id, const Node& node) const {
    const Node* producer = graph_.producer_of(id);
    return producer != nullptr && producer->is_backward() && !is_join(*producer) &&
           producer->forward_node == node.forward_node;
  }

  void lower_backward(const Node& node) {
    const OpDef& op = find_op(node.op);
    const Node& forward = graph_.node(node.forward_node);
    const Operands& used = operands_.at(forward.id);
    const Format* compute = compute_.at(forward.id);
    std::vector<int> inputs;
    std::vector<const Format*> input_formats, seen;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const std::string& id = node.inputs[i];
      const int original = builder_.stored(id);
      int value = original;
      const Format* target = nullptr;
      const auto saved = std::find(forward.inputs.begin(), forward.inputs.end(), id);
      if (is_gradient(id)) {
        if (!is_intermediate(id, node)) target = output_format(forward, id);
      } else if (saved != forward.inputs.end()) {
        value = used.value[static_cast<size_t>(saved - forward.inputs.begin())];
      }
      const Operand operand = read_operand(node, i, value, original, target,
                                           is_factor(node, op, i) && compute == nullptr);
      inputs.push_back(operand.value);
      // A saved operand is computed with as the forward op did, unless a rule casts it anew.
      const bool as_saved = saved != forward.inputs.end() && !operand.by_rule;
      seen.push_back(as_saved ? used.seen[static_cast<size_t>(saved - forward.inputs.begin())]
                              : operand.seen);
      input_formats.push_back(target != nullptr ? target : builder_.format_of(value));
    }
    std::vector<const Format*> formats;
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      const Format* first = formats.empty() ? followed(op, input_formats) : formats.front();
      const Format* own = gradient_format(node, k, forward, used);
      formats.push_back(own != nullptr ? own : extra_output_format(node, op, k, compute, first));
    }
    add_op(node, op, std::move(inputs), seen, formats, compute, forward.op);
  }

  // The format in which `forward` gave the output that `gradient` belongs to.
  const Format* output_format(const Node& forward, const std::string& gradient) const {
    std::string output = output_id(forward, 0);
    if (const Node* producer = graph_.producer_of(gradient)) {
      const size_t index = static_cast<size_t>(split_value_id(gradient).second);
      const std::string& of =
          index < producer->gradient_of.size() ? producer->gradient_of[index] : output;
      if (split_value_id(of).first == forward.id) output = of;
    }
    return stored_format(output);
  }

  // A gradient is in the format of the operand it belongs to; null: output k is no such gradient.
  const Format* gradient_format(const Node& node, size_t k, const Node& forward,
                                const Operands& used) const {
    if (k >= node.gradient_of.size() || node.gradient_of[k].empty()) return nullptr;
    const auto operand =
        std::find(forward.inputs.begin(), forward.inputs.end(), node.gradient_of[k]);
    if (operand == forward.inputs.end()) return nullptr;
    return used.format[static_cast<size_t>(operand - forward.inputs.begin())];
  }

  // Adding up the parts of one gradient.
  void lower_join(const Node& node) {
    const std::string& of = node.gradient_of.front();
    const Format* target = stored_format(of);
    if (graph_.parameter_of(of) != nullptr) {
      const Format* shared = stored_format(node.inputs.front());
      const bool all_alike =
          std::all_of(node.inputs.begin(), node.inputs.end(),
                      [&](const std::string& id) { return stored_format(id) == shared; });
      if (all_alike) target = shared;
    }
    std::vector<int> inputs;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const int value = builder_.stored(node.inputs[i]);
      inputs.push_back(read_operand(node, i, value, value, target, /*is_factor=*/false).value);
    }
    add_op(node, find_op(node.op), std::move(inputs), {}, {target}, nullptr, node.op);
  }

  // --- results ---
  void add_results() {
    Program& program = builder_.program();
    program.results["loss"] = builder_.stored(graph_.loss);
    for (const auto& [name, id] : graph_.outputs) {
      program.results["output:" + name] = builder_.stored(id);
    }
    for (const auto& [name, id] : graph_.gradients) {
      program.results["grad:" + name] = builder_.stored(id);
    }
    for (const Mutation& m : graph_.mutations) {
      program.results["mutation:" + m.buffer] = builder_.stored(m.value);
    }
  }

  void check() const {
    ProblemList problems("policy '" + policy_.label() + "' on " + graph_.name);
    for (const auto& [problem, sums] : unit_problems_) {
      const std::string others =
          sums.size() == 1 ? "" : " and " + std::to_string(sums.size() - 1) + " more sums";
      problems.add(sums.front() + others + ": " + problem,
                   "`lockstep list accumulators` tells what takes which factors");
    }
    if (!policy_unit_used_ && !policy_.gemm_accumulator->operands.empty() &&
        !graph_.gradients.empty()) {
      problems.add(
          "[gemm] accumulator " + policy_.gemm_accumulator->name +
              ": no sum of products has factors that it takes",
          "`lockstep list accumulators` tells them; without the accumulator `lockstep explain` "
          "shows every sum's factors");
    }
    if (!graph_.gradients.empty()) rules_.report_unused(problems);
    for (const Mutation& m : graph_.mutations) {
      const Format *value = stored_format(m.value), *buffer = stored_format("b:" + m.buffer);
      if (value == nullptr || contains(*buffer, *value)) continue;
      problems.add("buffer '" + m.buffer + "' is stored in " + buffer->name +
                       ", which cannot hold its new value in " + value->name,
                   "set [storage] buffer, or let no [[rule]] change that output's format");
    }
    problems.throw_if_any();
  }

  const Graph& graph_;
  const SiteTable& sites_;
  const Policy& policy_;
  RuleBook rules_;
  const Format* container_;
  ProgramBuilder builder_;
  std::map<std::string, Operands> operands_;      // forward node id ->
  std::map<std::string, const Format*> compute_;  // forward node id -> compute rule or null
  std::map<std::string, std::vector<std::string>> unit_problems_;  // problem -> sums that have it
  bool policy_unit_used_ = false;  // some sum uses [gemm] accumulator itself
};

}  // namespace

Program lower(const Graph& step, const SiteTable& sites, const Policy& policy,
              bool container_is_fp64) {
  const Policy truth = truth_policy();
  return Lowering(step, sites, container_is_fp64 ? truth : policy, container_is_fp64).run();
}

}  // namespace lockstep
