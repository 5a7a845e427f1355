// A problem that many sums share is reported once, with the first of them.
#include "src/lower/checks.h"

#include "src/graph/infer.h"

namespace lockstep {

void LowerChecks::add_sum_problem(const Node& node, const std::string& problem) {
  sum_problems_[problem].push_back(layer_of(in_.graph, node) + " " + node.op);
}

void LowerChecks::note_sum(const Accumulator& accumulator) {
  policy_unit_used_ = policy_unit_used_ || &accumulator == in_.policy.gemm_accumulator;
}

void LowerChecks::check_region(const Node& node, const OpDef& op,
                               const std::vector<const Format*>& operands) {
  if (!op.sums.of_products) return;
  const auto a = static_cast<size_t>(op.sums.operands.at(0));
  const auto b = static_cast<size_t>(op.sums.operands.at(1));
  if (operands.at(a) == operands.at(b)) return;
  region_problems_.push_back(layer_of(in_.graph, node) + " " + node.op + ": " + operands[a]->name +
                             " x " + operands[b]->name);
}

void LowerChecks::report_sums(ProblemList& problems) const {
  for (const auto& [problem, sums] : sum_problems_) {
    const std::string others =
        sums.size() == 1 ? "" : " and " + std::to_string(sums.size() - 1) + " more sums";
    problems.add(sums.front() + others + ": " + problem,
                 "`lockstep list accumulators` shows which factors each one takes");
  }
  const Accumulator& accumulator = *in_.policy.gemm_accumulator;
  if (policy_unit_used_ || accumulator.operands.empty() || in_.graph.gradients.empty()) return;
  if (in_.policy.is_of_larger_model) return;
  problems.add(
      "[gemm] accumulator " + accumulator.name + ": no sum of products has factors that it takes",
      "`lockstep list accumulators` shows them; without the accumulator `lockstep "
      "explain` shows every sum's factors");
}

void LowerChecks::report_buffers(ProblemList& problems, const ProgramBuilder& builder) const {
  for (const Mutation& m : in_.graph.mutations) {
    const Format* value = builder.stored_format(m.value);
    const Format* buffer = builder.stored_format("b:" + m.buffer);
    if (value == nullptr || contains(*buffer, *value)) continue;
    problems.add("buffer '" + m.buffer + "' is stored in " + buffer->name +
                     ", which cannot hold its new value in " + value->name,
                 "set [storage] buffer, or remove the [[rule]] on that output's format");
  }
}

void LowerChecks::throw_if_any(const RuleBook& rules, const ScaledOperands& scaled,
                               const ProgramBuilder& builder) const {
  ProblemList problems("policy '" + in_.policy.label() + "' on " + in_.graph.name);
  report_sums(problems);
  for (const std::string& problem : region_problems_) {
    problems.add(problem + " in a region without autocast, an error in torch",
                 "compute = \"fp32\" casts the operands as well, like x.float() in the region");
  }
  // An evaluation graph lacks the backward half.
  if (!in_.graph.gradients.empty() && !in_.policy.is_of_larger_model) {
    rules.report_unused(problems);
    scaled.report_unused(problems);
  }
  scaled.report_shapes(problems);
  report_buffers(problems, builder);
  problems.throw_if_any();
}

}  // namespace lockstep
