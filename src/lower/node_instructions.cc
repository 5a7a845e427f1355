// A rule on a site wins over the formats of the op's class, and over [gemm] and [scaling].
#include "src/lower/node_instructions.h"

#include <algorithm>

#include "src/graph/infer.h"
#include "src/lower/node_formats.h"
#include "src/policy/hardware_policy.h"

namespace lockstep {
namespace {

std::string forward_op_of(const Graph& graph, const Node& node) {
  return node.is_backward() ? graph.node(node.forward_node).op : node.op;
}

bool is_factor(const Node& node, const OpDef& op, size_t operand) {
  if (op.sums.is_factor != nullptr) return op.sums.is_factor(node, operand);
  return op.sums.of_products && std::find(op.sums.operands.begin(), op.sums.operands.end(),
                                          static_cast<int>(operand)) != op.sums.operands.end();
}

// Whether the kernels that the policy follows form the op's sums in the format of its result.
bool sums_in_own_type(const Node& node, IndexedSums kernels) {
  if (kernels == IndexedSums::kDeclared) return false;
  const std::string where = string_attribute(node, "own_type", "");
  return where == "both" || where == (kernels == IndexedSums::kTorchCuda ? "cuda" : "cpu");
}

// The fused chain whose sums have this format, or null.
const Accumulator* chain_in(const Format& format) {
  const auto found = std::ranges::find_if(accumulators(), [&](const Accumulator& row) {
    return row.kind == AccumulatorKind::kFusedChain && row.format == &format;
  });
  return found == accumulators().end() ? nullptr : &*found;
}

}  // namespace

// Whether [gemm] operand applies to the sums of an op, or of its backward partners.
bool OpLowering::is_narrowed_op(const std::string& forward_op) const {
  const std::vector<std::string>& ops = in_.policy.gemm_operand_ops;
  return ops.empty() || std::find(ops.begin(), ops.end(), forward_op) != ops.end();
}

Operand OpLowering::read(const Node& node, const OpDef& op, size_t operand,
                         const OperandSource& from, const Format* compute) {
  if (builder_.format_of(from.value) == nullptr) return {from.value, nullptr};  // integers
  // A rule's compute format applies to factors, too.
  Operand read =
      read_float(node, operand, from, is_factor(node, op, operand) && compute == nullptr);
  read.seen = seen_inside(node, op, operand, read.seen);
  return read;
}

// `is_factor`: [scaling] and [gemm] operand apply.
Operand OpLowering::read_float(const Node& node, size_t operand, const OperandSource& from,
                               bool is_factor) {
  const std::string forward_op = forward_op_of(in_.graph, node);
  const int32_t site = in_.sites.find(node.id, Point::kOperand, static_cast<int>(operand));
  const RuleBook::SiteRule rule = rules_.at_site(site);
  if (is_factor && rule.format == nullptr) {
    if (auto cast = scaled_.cast_of(node, operand, forward_op)) {
      if (rule.rounding) cast->to.rounding = *rule.rounding;
      return read_scaled(node, operand, from, *cast, site);
    }
  }
  const Format* stored = builder_.format_of(from.value);
  const Format* target = from.target;
  const Format* seen = target != nullptr ? target : stored;
  Rounding rounding = in_.policy.rounding;
  const Format* factor =
      is_factor && is_narrowed_op(forward_op) ? in_.policy.gemm_operand : nullptr;
  const bool is_narrowed = target != nullptr && !contains(*target, *stored);
  if (factor != nullptr && !contains(*factor, is_narrowed ? *target : *stored)) {
    target = factor;
    rounding = in_.policy.gemm_operand_rounding;
  }
  if (factor != nullptr && !contains(*factor, *seen)) seen = factor;
  if (rule.rounding) rounding = *rule.rounding;
  const bool by_rule = rule.format != nullptr;
  if (by_rule) target = seen = rule.format;
  const int value = by_rule ? from.original : from.value;
  return {builder_.read(value, target, rounding, site), seen, by_rule};
}

// A weight is scaled in its stored format, all other values in autocast's. The accumulator reads
// block formats as the FP32 numbers that they represent, unless it sums block by block.
Operand OpLowering::read_scaled(const Node& node, size_t operand, const OperandSource& from,
                                const ScaledCast& cast, int32_t site) {
  const bool is_parameter = in_.graph.parameter_of(node.inputs[operand]) != nullptr;
  const int unscaled = is_parameter ? from.original
                                    : builder_.read(from.value, from.target, in_.policy.rounding,
                                                    /*site=*/-1, ~site);
  const bool reads_blocks = cast.to.block != nullptr && !cast.keeps_scales;
  const Format* seen = reads_blocks ? &find_format("fp32") : cast.to.element;
  return {builder_.read_scaled(unscaled, cast, site), seen, /*by_rule=*/false, unscaled};
}

// The format the op computes with: the one it reads, unless it widens that first.
const Format* OpLowering::seen_inside(const Node& node, const OpDef& op, size_t operand,
                                      const Format* seen) const {
  if (seen == nullptr || !computes_wide(node, op)) return seen;
  const Format* fp32 = &find_format("fp32");
  const bool narrowed = is_factor(node, op, operand) && is_narrowed_op(node.op);
  const Format* factor = narrowed ? in_.policy.gemm_operand : nullptr;
  return factor != nullptr && !contains(*factor, *fp32) ? factor : wider(seen, fp32);
}

void OpLowering::add(const Node& node, const OpDef& op, std::vector<int> inputs,
                     const LoweredFormats& formats) {
  std::vector<ValueRounding> roundings;
  for (size_t k = 0; k < node.outputs.size(); ++k) {
    const bool is_float = node.outputs[k].element == ElementType::kFloat;
    ValueRounding rounding{is_float ? formats.outputs[k] : nullptr, in_.policy.rounding, {}};
    if (is_float) {
      const int32_t site = in_.sites.find(node.id, Point::kOutput, static_cast<int>(k));
      const RuleBook::SiteRule rule = rules_.at_site(site);
      if (rule.format != nullptr) rounding.format = rule.format;
      if (rule.rounding) rounding.rounding = *rule.rounding;
      if (site >= 0) rounding.sites.push_back(site);
    }
    roundings.push_back(std::move(rounding));
  }
  Instruction& run = builder_.add_op(node, std::move(inputs), std::move(roundings));
  run.inner_formats = formats.inner;
  run.gemm_accumulator = wide_enough(in_.policy.gemm_accumulator, node, op, formats.compute);
  run.reduce_accumulator = wide_enough(in_.policy.reduce_accumulator, node, op, formats.compute);
  if (sums_in_own_type(node, in_.policy.indexed_sums)) {
    const Accumulator* own = chain_in(*formats.outputs.at(0));
    if (own != nullptr) run.reduce_accumulator = own;
  }
  if (!op.sums.of_products) return;
  const std::string forward_op = forward_op_of(in_.graph, node);
  const Accumulator* by_rule = rules_.accumulator(node, forward_op);
  if (by_rule == nullptr && scaled_factors(run.inputs) == 2) {
    by_rule = scaled_.accumulator_of(node, forward_op);
  }
  if (by_rule != nullptr) run.gemm_accumulator = by_rule;
  run.sum_block = sum_block_of(node, run.inputs);
  set_unit(node, op, run, formats.seen, by_rule != nullptr);
  if (!contains(*run.gemm_accumulator->format, *in_.container)) {
    run.accumulator_site = in_.sites.find(node.id, Point::kAccumulator, 0);
  }
}

// The accumulator for this op's factors.
void OpLowering::set_unit(const Node& node, const OpDef& op, Instruction& run,
                          const std::vector<const Format*>& seen, bool by_rule) {
  const auto a = static_cast<size_t>(op.sums.operands.at(0));
  const auto b = static_cast<size_t>(op.sums.operands.at(1));
  const AccumulatorChoice choice =
      choose_accumulator(in_.policy, *run.gemm_accumulator, by_rule, *seen.at(a), *seen.at(b));
  if (const BlockFormat* block = block_format_among(run.inputs);
      block != nullptr && run.sum_block == 0 && in_.policy.hardware != nullptr &&
      !in_.policy.hardware->runs_other_sums) {
    checks_.add_sum_problem(node, "no accumulator of " + std::string(in_.policy.hardware->name) +
                                      " models products of " + block->name);
  }
  if (!choice.problem.empty()) checks_.add_sum_problem(node, choice.problem);
  checks_.note_sum(*choice.accumulator);
  LibraryRules rules = in_.policy.cuda;
  if (op.sums.are_kept) rules.narrow_results = false;
  run.gemm_accumulator = &with_library_rules(*choice.accumulator, rules);
  run.factor_formats.assign(run.inputs.size(), nullptr);
  run.factor_formats[a] = choice.a;
  run.factor_formats[b] = choice.b;
}

// How many of these values are scaled casts.
int OpLowering::scaled_factors(const std::vector<int>& values) {
  return static_cast<int>(std::ranges::count_if(
      values, [&](int v) { return builder_.program().values[v].scaled_cast >= 0; }));
}

// Instruction::sum_block. Both factors must be cut at the same places.
int64_t OpLowering::sum_block_of(const Node& node, const std::vector<int>& values) {
  const Program& program = builder_.program();
  std::vector<int64_t> blocks;
  for (const int v : values) {
    const int cast = program.values[v].scaled_cast;
    if (cast < 0) continue;
    const ScaledCast& how = program.scaled_casts[static_cast<size_t>(cast)];
    if (how.keeps_scales)
      blocks.push_back(std::min<int64_t>(how.to.block->block_size, how.shape.along()));
  }
  if (blocks.empty()) return 0;
  if (blocks.size() == 1 || blocks[0] != blocks[1]) {
    checks_.add_sum_problem(node,
                            "[scaling] accumulator and block_scale = \"fp32\" sum block by block: "
                            "both factors must be scaled in blocks of one size");
  }
  return blocks[0];
}

// The block format of some scaled operand, or null.
const BlockFormat* OpLowering::block_format_among(const std::vector<int>& values) {
  const Program& program = builder_.program();
  for (const int v : values) {
    const int cast = program.values[v].scaled_cast;
    if (cast >= 0 && program.scaled_casts[cast].to.block != nullptr) {
      return program.scaled_casts[cast].to.block;
    }
  }
  return nullptr;
}

}  // namespace lockstep
