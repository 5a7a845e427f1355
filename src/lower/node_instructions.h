// Turns one node into instructions.
// Adds the casts and observations of its operands and the op itself, with every output's rounding
// and the accumulators of its sums. [[rule]], [gemm], [scaling] and the hardware act here on the
// formats from node_formats.h. Knows nothing of forward and backward formats.
#pragma once

#include <string>
#include <vector>

#include "src/graph/op.h"
#include "src/lower/checks.h"
#include "src/lower/inputs.h"
#include "src/lower/program_builder.h"
#include "src/lower/rule_match.h"

namespace lockstep {

// Where an operand comes from.
struct OperandSource {
  int value;             // the value to read
  int original;          // before any cast of the forward partner; a rule starts from it
  const Format* target;  // the format to cast it to; null: no cast
};

// A value to read, and the format that the op computes with.
struct Operand {
  int value;
  const Format* seen;    // wider than the value's own if widening needed no cast
  bool by_rule = false;  // a rule sets the format
  int unscaled = -1;     // of a scaled operand: the value that was scaled
};

// The formats an op runs in.
struct LoweredFormats {
  std::vector<const Format*> outputs = {};  // before rules on single values
  std::vector<const Format*> seen = {};     // Operand::seen of every operand
  std::vector<const Format*> inner = {};    // OpCall::inner_formats
  const Format* compute = nullptr;          // the forward node's compute rule, or null
};

class OpLowering {
 public:
  OpLowering(const LowerInputs& in, RuleBook& rules, ScaledOperands& scaled,
             ProgramBuilder& builder, LowerChecks& checks)
      : in_(in), rules_(rules), scaled_(scaled), builder_(builder), checks_(checks) {}

  Operand read(const Node& node, const OpDef& op, size_t operand, const OperandSource& from,
               const Format* compute);
  // `inputs`: the results of read(), by operand.
  void add(const Node& node, const OpDef& op, std::vector<int> inputs,
           const LoweredFormats& formats);

 private:
  bool is_narrowed_op(const std::string& forward_op) const;
  Operand read_float(const Node& node, size_t operand, const OperandSource& from, bool is_factor);
  Operand read_scaled(const Node& node, size_t operand, const OperandSource& from,
                      const ScaledCast& cast, int32_t site);
  const Format* seen_inside(const Node& node, const OpDef& op, size_t operand,
                            const Format* seen) const;
  void set_unit(const Node& node, const OpDef& op, Instruction& run,
                const std::vector<const Format*>& seen, bool by_rule);
  int scaled_factors(const std::vector<int>& values);
  int64_t sum_block_of(const Node& node, const std::vector<int>& values);
  const BlockFormat* block_format_among(const std::vector<int>& values);

  const LowerInputs& in_;
  RuleBook& rules_;
  ScaledOperands& scaled_;
  ProgramBuilder& builder_;
  LowerChecks& checks_;
};

}  // namespace lockstep
