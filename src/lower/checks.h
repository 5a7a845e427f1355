// Rejects policies that a graph cannot satisfy.
// Collects problems while nodes are lowered, so that one error reports all of them. A RuleBook
// reports those of single rules.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "src/core/error.h"
#include "src/graph/op.h"
#include "src/lower/inputs.h"
#include "src/lower/program_builder.h"
#include "src/lower/rule_match.h"
#include "src/lower/scaled_cast.h"

namespace lockstep {

class LowerChecks {
 public:
  explicit LowerChecks(const LowerInputs& in) : in_(in) {}

  // A sum of products that no accumulator forms.
  void add_sum_problem(const Node& node, const std::string& problem);
  // A sum of products that this accumulator forms.
  void note_sum(const Accumulator& accumulator);
  // Without autocast torch has no sum of products of two formats. `operands`: the formats as cast.
  void check_region(const Node& node, const OpDef& op, const std::vector<const Format*>& operands);

  // Call after all nodes are lowered. Throws: InputError with all problems.
  void throw_if_any(const RuleBook& rules, const ScaledOperands& scaled,
                    const ProgramBuilder& builder) const;

 private:
  void report_sums(ProblemList& problems) const;
  void report_buffers(ProblemList& problems, const ProgramBuilder& builder) const;

  const LowerInputs& in_;
  std::map<std::string, std::vector<std::string>> sum_problems_;  // problem -> sums that have it
  std::vector<std::string> region_problems_;
  bool policy_unit_used_ = false;  // some sum uses [gemm] accumulator itself
};

}  // namespace lockstep
