// The lowering itself: one pass over the nodes in order. A forward node decides its formats and
// leaves them for its backward partners, which only look them up.
#include "src/graph/lower.h"

#include <algorithm>
#include <set>
#include <stdexcept>

#include "src/core/error.h"
#include "src/graph/composed_ops.h"
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
  std::vector<int> value = {};  // program value the op reads
  std::vector<const Format*> format =
      {};                                // of the gradient: what the op's class made of the operand
  std::vector<const Format*> seen = {};  // the format the op computes with, wider than the value's
                                         // where widening needed no cast
  std::vector<const Format*> parts = {};  // OpCall::part_formats
};

bool is_one_of(const std::vector<std::string>& ops, const std::string& op) {
  return std::find(ops.begin(), ops.end(), op) != ops.end();
}

// A value to read, and the format the op computes with.
struct Operand {
  int value;
  const Format* seen;
  bool by_rule = false;  // a rule says the format
  int unscaled = -1;     // of a scaled factor: the value that was scaled
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
        scaled_(policy, graph),
        container_(&find_format(is_fp64 ? "fp64" : "fp32")),
        parts_(composed_parts(graph)) {
    find_kept();
    find_model();
  }

  Program run() {
    builder_.program().scaling = policy_.scaling;
    builder_.program().rounds_dropout_scale = policy_.rounds_dropout_scale;
    builder_.program().flash_kernel = policy_.flash_kernel;
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
      set_seed_formats(node);
    }
    add_results();
    check();
    return std::move(builder_.program());
  }

 private:
  const Format* stored_format(const std::string& id) const { return builder_.stored_format(id); }

  // What [storage] keep_fp32 keeps. A node without a parameter of its own (a norm that is not
  // affine) is cast with the rest, buffers included, as apex and torch's fp16_utils do it.
  void find_kept() {
    for (const Node& node : graph_.nodes) {
      if (node.is_backward() || !is_one_of(policy_.keep_fp32, node.op)) continue;
      const bool is_affine = std::ranges::any_of(
          node.inputs, [&](const std::string& id) { return graph_.parameter_of(id) != nullptr; });
      if (is_affine) kept_.insert(node.inputs.begin(), node.inputs.end());
    }
  }
  const Format* storage(const std::string& id, const Format* format) const {
    return kept_.contains(id) ? &find_format("fp32") : format;
  }

  // The model is what feeds a loss op; all other forward nodes are the loss.
  void find_model() {
    if (policy_.model_input == nullptr && policy_.model_output == nullptr) return;
    bool has_loss = false;
    for (auto node = graph_.nodes.rbegin(); node != graph_.nodes.rend(); ++node) {
      if (node->is_backward()) continue;
      const bool reads_model = is_loss(*node, find_op(node->op));
      has_loss = has_loss || reads_model;
      if (!reads_model && !model_.contains(node->id)) continue;
      for (const std::string& id : node->inputs) model_.insert(split_value_id(id).first);
    }
    if (has_loss) return;
    throw InputError("policy '" + policy_.label() + "' on " + graph_.name +
                         ": [model] needs a loss op to tell the model from its loss",
                     "end the graph in cross_entropy, mse_loss or another loss, or leave [model] "
                     "out");
  }
  // What a forward node's operand becomes at the model's borders, or null.
  const Format* border_format(const Node& node, const std::string& id) const {
    const bool in_model = model_.contains(node.id);
    const bool is_input =
        std::ranges::any_of(graph_.inputs, [&](const GraphInput& input) { return input.id == id; });
    if (is_input) return in_model ? policy_.model_input : nullptr;
    return !in_model && crosses_output_border(id) ? policy_.model_output : nullptr;
  }

  // Whether the loss reads the value through one cast: the parts of its gradient that come from the
  // loss add up in that cast's format, as those of a parameter do in the cached cast's.
  bool crosses_output_border(const std::string& id) const {
    return policy_.model_output != nullptr && model_.contains(split_value_id(id).first) &&
           graph_.producer_of(id) != nullptr;
  }

  void add_externals() {
    for (const GraphInput& input : graph_.inputs) {
      builder_.add_external(input.id, input.type, policy_.input);
    }
    for (const Parameter& p : graph_.parameters) {
      builder_.add_external("p:" + p.name, p.type, storage("p:" + p.name, policy_.weight));
    }
    for (const Buffer& b : graph_.buffers) {
      builder_.add_external("b:" + b.name, b.type, storage("b:" + b.name, policy_.buffer));
    }
    for (const Constant& c : graph_.constants) {
      builder_.add_external("c:" + c.name, c.type, policy_.buffer);
    }
    const std::string seed(kLossSeedId);
    if (!graph_.gradients.empty() && graph_.passes.empty() && !builder_.has(seed)) {
      builder_.add_external(seed, TensorType{}, policy_.input);
    }
  }
  // The gradient of a loss is in the loss's format, known behind the node that makes it.
  void set_seed_formats(const Node& node) {
    const auto set_format = [&](const std::string& loss, const std::string& seed) {
      if (split_value_id(loss).first != node.id || !builder_.has(seed)) return;
      builder_.set_format(builder_.stored(seed), stored_format(loss));
    };
    set_format(graph_.loss, std::string(kLossSeedId));
    for (const BackwardPass& pass : graph_.passes) set_format(pass.loss, pass.seed);
  }

  // One operand of the node being lowered. `value`: as it would be read; `original`: before any
  // cast its forward partner made, which a rule starts from. `is_factor`: [gemm] operand applies.
  Operand read_operand(const Node& node, size_t operand, int value, int original,
                       const Format* target, bool is_factor) {
    if (builder_.format_of(value) == nullptr) return {value, nullptr};  // integers
    const int32_t site = sites_.find(node.id, Point::kOperand, static_cast<int>(operand));
    if (is_factor && rules_.at_site(site).format == nullptr) {
      const bool in_backward = is_gradient(node.inputs[operand]);
      if (auto cast = scaled_.cast_of(node, operand, forward_op(node), in_backward)) {
        return read_scaled(node, operand, value, target, std::move(*cast), site);
      }
    }
    const Format* seen = target != nullptr ? target : builder_.format_of(value);
    Rounding rounding = policy_.rounding;
    const Format* factor =
        is_factor && is_gemm_operand_op(forward_op(node)) ? policy_.gemm_operand : nullptr;
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
  // A weight is scaled as it is stored, everything else as autocast has it. The accumulator reads
  // block formats as the FP32 numbers they stand for.
  Operand read_scaled(const Node& node, size_t operand, int value, const Format* target,
                      ScaledCast cast, int32_t site) {
    if (const auto rounding = rules_.at_site(site).rounding) cast.to.rounding = *rounding;
    const bool is_parameter = graph_.parameter_of(node.inputs[operand]) != nullptr;
    const int unscaled = builder_.read(value, is_parameter ? nullptr : target, policy_.rounding,
                                       /*site=*/-1, ~site);
    const Format* seen = cast.to.block != nullptr ? &find_format("fp32") : cast.to.element;
    return {builder_.read_scaled(unscaled, cast, site), seen, /*by_rule=*/false, unscaled};
  }
  std::string forward_op(const Node& node) const {
    return node.is_backward() ? graph_.node(node.forward_node).op : node.op;
  }
  // Whether [gemm] operand holds for the sums of an op, or of its backward partners.
  bool is_gemm_operand_op(const std::string& forward_op) const {
    return policy_.gemm_operand_ops.empty() || is_one_of(policy_.gemm_operand_ops, forward_op);
  }
  static bool is_factor(const Node& node, const OpDef& op, size_t operand) {
    if (op.is_factor != nullptr) return op.is_factor(node, operand);
    return op.has_gemm_accumulator &&
           std::find(op.product_operands.begin(), op.product_operands.end(),
                     static_cast<int>(operand)) != op.product_operands.end();
  }

  // --- the op instruction ---
  // `formats`: of every output before rules. `compute`: the forward node's compute rule, or null.
  // `used`: of its seen and parts alone.
  void add_op(const Node& node, const OpDef& op, std::vector<int> inputs, const Operands& used,
              const std::vector<const Format*>& formats, const Format* compute,
              const std::string& forward_op) {
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
    run.part_formats = used.parts;
    const Format* sums = sum_format(node, op, compute);
    run.gemm_accumulator = wide_enough(policy_.gemm_accumulator, sums);
    run.reduce_accumulator = wide_enough(policy_.reduce_accumulator, sums);
    if (!op.has_gemm_accumulator) return;
    const Accumulator* by_rule = rules_.accumulator(node, forward_op);
    if (by_rule != nullptr) run.gemm_accumulator = by_rule;
    set_unit(node, op, run, used.seen, by_rule != nullptr);
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
    if (const BlockFormat* block = block_format_among(run.inputs);
        block != nullptr && policy_.hardware != nullptr && !policy_.hardware->runs_other_sums) {
      unit_problems_["no accumulator of " + std::string(policy_.hardware->name) +
                     " models products of " + block->name]
          .push_back(layer_of(graph_, node) + " " + node.op);
    }
    if (!choice.problem.empty()) {
      unit_problems_[choice.problem].push_back(layer_of(graph_, node) + " " + node.op);
    }
    run.gemm_accumulator = choice.accumulator;
    policy_unit_used_ = policy_unit_used_ || choice.accumulator == policy_.gemm_accumulator;
    run.factor_formats.assign(run.inputs.size(), nullptr);
    run.factor_formats[a] = choice.a;
    run.factor_formats[b] = choice.b;
  }
  // The block format of some scaled factor, or null.
  const BlockFormat* block_format_among(const std::vector<int>& values) {
    const Program& program = builder_.program();
    for (const int v : values) {
      const int cast = program.values[v].scaled_cast;
      if (cast >= 0 && program.scaled_casts[cast].to.block != nullptr) {
        return program.scaled_casts[cast].to.block;
      }
    }
    return nullptr;
  }
  // An op that a rule makes compute in FP32 does not sum in FP16.
  const Accumulator* wide_enough(const Accumulator* accumulator, const Format* compute) const {
    if (compute == nullptr || contains(*accumulator->format, *compute)) return accumulator;
    return &find_accumulator("fp32_fused");
  }

  // --- forward ---
  // `op`: the node's, or one that would stand in its place.
  CastClass class_of(const Node& node, const OpDef& op, bool autocast) const {
    if (policy_.low == nullptr || !autocast) return CastClass::kFollow;
    return policy_.class_of(listed_name(node, op));
  }

  // The format that the node itself names for its output, or null. `by_class`: what its class does.
  const Format* own_format(const Node& node, const OpDef& op, const Format* by_class) const {
    if (op.class_of_result) {
      return by_class != nullptr ? by_class : followed(node, op, formats_inside(node));
    }
    const std::string named = string_attribute(node, op.format_attribute, "");
    if (named.empty()) return nullptr;
    return container_->is_fp64() ? container_ : &find_format(named);
  }

  // What the node's class casts its operands to and gives its output; null: follow the operands.
  const Format* class_format(const Node& node, const OpDef& op, const Format* compute,
                             bool autocast) const {
    if (compute != nullptr) return compute;
    switch (class_of(node, op, autocast)) {
      case CastClass::kLowPrecision:
        return policy_.low;
      case CastClass::kFp32:
        return &find_format("fp32");
      case CastClass::kPromote: {
        const Format* widest = policy_.low;
        for (size_t i = 0; i < node.inputs.size(); ++i) {
          const Format* border = border_format(node, node.inputs[i]);
          const Format* format = stored_format(node.inputs[i]);
          const bool counts = !op.class_of_result || decides(op, i);
          if (counts && format != nullptr)
            widest = wider(widest, border != nullptr ? border : format);
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
    // The rules are asked first: one that matches here has matched something.
    const Format* rule = rules_.compute(node);
    const Format* compute = parts_.contains(node.id) ? container_ : rule;
    const bool autocast = !rules_.autocast_off(node) && node.autocast != AutocastRegion::kOff;
    const Format* by_class = class_format(node, op, compute, autocast);
    const Format* own = own_format(node, op, by_class);
    const bool casts_operands =
        own == nullptr || (!op.class_attribute.empty() && !op.class_of_result);
    const Format* target = casts_operands ? by_class : nullptr;
    Operands& used = operands_[node.id];
    const Format* first = target != nullptr ? target : followed(node, op, formats_inside(node));
    NodeFormats formats;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const Format* stored = stored_format(node.inputs[i]);
      const Format* cast_to = nullptr;
      if (!is_state(node, op, i)) {
        cast_to = target != nullptr ? target : border_format(node, node.inputs[i]);
        if (cast_to == nullptr && own == nullptr) cast_to = category_cast(node, op, i, first);
      }
      formats.stored.push_back(stored);
      formats.operands.push_back(cast_to);
      formats.gradients.push_back(cast_to != nullptr && stored != nullptr ? cast_to : stored);
    }
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      formats.outputs.push_back(
          k == 0 && own != nullptr ? own : extra_output_format(node, op, k, compute, first));
    }
    if (imitates_cpu(op)) {
      const Format* low = class_format(node, find_op("linear"), compute, autocast);
      formats.low = low != nullptr ? low : first;
      op.cpu_formats(node, formats);
    }
    if (rounds_parts(op) && !contains(*formats.outputs[0], *container_)) {
      formats.parts = {formats.outputs[0]};
    }
    used.format = formats.gradients;
    used.parts = formats.parts;
    std::vector<int> inputs;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const int value = builder_.stored(node.inputs[i]);
      const Operand operand = read_operand(node, i, value, value, formats.operands[i],
                                           is_factor(node, op, i) && compute == nullptr);
      inputs.push_back(operand.value);
      used.value.push_back(operand.unscaled >= 0 ? operand.unscaled : operand.value);
      used.seen.push_back(seen_inside(node, op, i, operand));
    }
    if (!autocast) check_region(node, op, used);
    compute_[node.id] = compute;
    scale_of_[node.id] = rules_.loss_scale(node);
    add_op(node, op, std::move(inputs), used, formats.outputs, compute, node.op);
  }
  bool rounds_parts(const OpDef& op) const {
    return op.rounds_parts == RoundsParts::kAlways ||
           (op.rounds_parts == RoundsParts::kOnCpu && policy_.rounds_log_softmax);
  }
  bool imitates_cpu(const OpDef& op) const {
    return op.cpu_formats != nullptr && policy_.recurrent_cells == RecurrentCells::kTorchCpu;
  }

  // Without autocast torch has no sum of products of two formats.
  void check_region(const Node& node, const OpDef& op, const Operands& used) {
    if (!op.has_gemm_accumulator) return;
    const auto a = static_cast<size_t>(op.product_operands.at(0));
    const auto b = static_cast<size_t>(op.product_operands.at(1));
    if (used.format.at(a) == used.format.at(b)) return;
    region_problems_.push_back(layer_of(graph_, node) + " " + node.op + ": " +
                               used.format[a]->name + " x " + used.format[b]->name);
  }

  // Running statistics pass through an op in their buffer's format, whatever the op's class.
  static bool is_state(const Node& node, const OpDef& op, size_t operand) {
    const std::vector<int> follows = output_follows_of(op, node);
    return std::find(follows.begin(), follows.end(), static_cast<int>(operand)) != follows.end();
  }

  std::vector<const Format*> formats_inside(const Node& node) const {
    std::vector<const Format*> formats;
    for (const std::string& input : node.inputs) {
      const Format* stored = stored_format(input);
      const Format* border = stored != nullptr ? border_format(node, input) : nullptr;
      formats.push_back(border != nullptr ? border : stored);
    }
    return formats;
  }

  static bool decides(const OpDef& op, size_t operand) {
    return op.follow_operands.empty() ||
           std::find(op.follow_operands.begin(), op.follow_operands.end(),
                     static_cast<int>(operand)) != op.follow_operands.end();
  }
  bool is_number(const Node& node, size_t operand) const {  // of no dimension
    return graph_.type_of(node.inputs[operand]).shape.empty();
  }

  // The promotion of the operands that decide: those with dimensions, as in torch, or, where there
  // are none, the single numbers. FP32 when there is none at all (all integers).
  const Format* followed(const Node& node, const OpDef& op,
                         const std::vector<const Format*>& formats) const {
    const Format *widest = nullptr, *widest_number = nullptr;
    for (size_t i = 0; i < formats.size(); ++i) {
      if (!decides(op, i) || formats[i] == nullptr) continue;
      const Format*& of_kind = is_number(node, i) ? widest_number : widest;
      of_kind = wider(of_kind, formats[i]);
    }
    if (widest != nullptr) return widest;
    return widest_number != nullptr ? widest_number : container_;
  }

  // A number wider than what the operands with dimensions promote to is read in their format.
  const Format* category_cast(const Node& node, const OpDef& op, size_t operand,
                              const Format* promoted) const {
    const Format* format = stored_format(node.inputs[operand]);
    const bool is_wider = format != nullptr && !contains(*promoted, *format);
    return is_wider && decides(op, operand) && is_number(node, operand) ? promoted : nullptr;
  }

  // The format the op computes with: what it reads, unless it widens that first.
  const Format* seen_inside(const Node& node, const OpDef& op, size_t operand,
                            const Operand& read) const {
    if (read.seen == nullptr || op.computes_wide == nullptr || !op.computes_wide(node)) {
      return read.seen;
    }
    const Format* fp32 = &find_format("fp32");
    const bool narrowed = is_factor(node, op, operand) && is_gemm_operand_op(node.op);
    const Format* factor = narrowed ? policy_.gemm_operand : nullptr;
    return factor != nullptr && !contains(*factor, *fp32) ? factor : wider(read.seen, fp32);
  }
  // The format whose values an op's sums must hold: a rule's, FP32 where it widens, or null.
  static const Format* sum_format(const Node& node, const OpDef& op, const Format* compute) {
    if (compute != nullptr || op.computes_wide == nullptr || !op.computes_wide(node)) {
      return compute;
    }
    return &find_format("fp32");
  }

  const Format* extra_output_format(const Node& node, const OpDef& op, size_t k,
                                    const Format* compute, const Format* first) const {
    constexpr int kAccumulatorFormat = -2;
    const std::vector<int> all = output_follows_of(op, node);
    const int follows = k < all.size() ? all[k] : -1;
    if (follows == kAccumulatorFormat) {
      return wide_enough(policy_.reduce_accumulator, sum_format(node, op, compute))->format;
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
    if (is_seed(id)) return true;
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
    const double scale = scale_of_.at(forward.id);
    std::vector<int> inputs;
    std::vector<const Format*> input_formats, seen;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const std::string& id = node.inputs[i];
      const int original = is_gradient(id) ? scaled(id, scale) : builder_.stored(id);
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
      const bool as_saved =
          saved != forward.inputs.end() && !operand.by_rule && operand.unscaled < 0;
      seen.push_back(as_saved ? used.seen[static_cast<size_t>(saved - forward.inputs.begin())]
                              : seen_inside(node, op, i, operand));
      input_formats.push_back(target != nullptr ? target : builder_.format_of(value));
    }
    std::vector<const Format*> formats;
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      const Format* first = formats.empty() ? followed(node, op, input_formats) : formats.front();
      const Format* own = gradient_format(node, k, forward, used);
      formats.push_back(own != nullptr ? own : extra_output_format(node, op, k, compute, first));
    }
    add_op(node, op, std::move(inputs), {.seen = seen, .parts = used.parts}, formats, compute,
           forward.op);
    keep_scale(node, scale);
  }

  // A gradient with the extra factor of the layer that reads it.
  int scaled(const std::string& id, double scale) {
    const int value = builder_.stored(id);
    const double factor = scale / scale_of_value(id);
    return factor == 1 ? value : builder_.rescale(value, factor, builder_.format_of(value));
  }
  double scale_of_value(const std::string& id) const {
    const auto found = scale_of_.find(split_value_id(id).first);
    return found == scale_of_.end() ? 1 : found->second;
  }
  void keep_scale(const Node& node, double scale) {
    scale_of_[node.id] = scale;
    if (scale == 1) return;
    for (const Site& site : sites_.sites) {
      if (site.node == node.id) builder_.program().site_factors[site.id] = scale;
    }
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
    // Inside a layer with a loss scale of its own gradients stay scaled; those of a parameter as
    // long as all its consumers agree.
    double scale = scale_of_value(of);
    if (graph_.parameter_of(of) != nullptr) {
      scale = scale_of_value(node.inputs.front());
      for (const std::string& id : node.inputs) {
        if (scale_of_value(id) != scale) scale = 1;
      }
    }
    const Format* target = stored_format(of);
    if ((graph_.parameter_of(of) != nullptr && policy_.weight_cache) || crosses_output_border(of)) {
      const Format* shared = stored_format(node.inputs.front());
      const bool all_alike =
          std::all_of(node.inputs.begin(), node.inputs.end(),
                      [&](const std::string& id) { return stored_format(id) == shared; });
      if (all_alike) target = shared;
    }
    std::vector<int> inputs;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const int value = scaled(node.inputs[i], scale);
      inputs.push_back(read_operand(node, i, value, value, target, /*is_factor=*/false).value);
    }
    add_op(node, find_op(node.op), std::move(inputs), {}, {target}, nullptr, node.op);
    keep_scale(node, scale);
  }

  // --- results ---
  void add_results() {
    Program& program = builder_.program();
    program.results["loss"] = builder_.stored(graph_.loss);
    for (const auto& [name, id] : graph_.outputs) {
      program.results["output:" + name] = builder_.stored(id);
    }
    const auto add_gradient = [&](const std::string& result, const std::string& name,
                                  const std::string& id) {
      // What a layer's own loss scale multiplied is divided in the parameter's format.
      const double scale = scale_of_value(id);
      const int value = builder_.stored(id);
      program.results[result] =
          scale == 1 ? value : builder_.rescale(value, 1 / scale, stored_format("p:" + name));
    };
    for (const auto& [name, id] : graph_.gradients) add_gradient("grad:" + name, name, id);
    for (const BackwardPass& pass : graph_.passes) {
      for (const auto& [name, id] : pass.gradients) {
        add_gradient(pass_gradient_result(pass, name), name, id);
      }
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
    for (const std::string& problem : region_problems_) {
      problems.add(problem + " in a region without autocast, which torch refuses",
                   "compute = \"fp32\" casts the operands as well, like x.float() in the region");
    }
    if (!graph_.gradients.empty()) {
      rules_.report_unused(problems);
      scaled_.report_unused(problems);
    }
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
  ScaledFactors scaled_;
  const Format* container_;
  ProgramBuilder builder_;
  std::map<std::string, Operands> operands_;      // forward node id ->
  std::map<std::string, const Format*> compute_;  // forward node id -> what a rule says, or null
  std::map<std::string, double> scale_of_;        // node id -> extra factor of its gradients
  std::map<std::string, std::vector<std::string>> unit_problems_;  // problem -> sums that have it
  std::vector<std::string> region_problems_;
  std::set<std::string> kept_;     // parameters and buffers that stay in FP32, by value id
  std::set<std::string> parts_;    // nodes inside composed ops, FP32 whatever the policy
  std::set<std::string> model_;    // nodes (and externals) that feed a loss op, by id
  bool policy_unit_used_ = false;  // some sum uses [gemm] accumulator itself
};

}  // namespace

Program lower(const Graph& step, const SiteTable& sites, const Policy& policy,
              bool container_is_fp64) {
  const Policy truth = truth_policy();
  return Lowering(step, sites, container_is_fp64 ? truth : policy, container_is_fp64).run();
}

}  // namespace lockstep
