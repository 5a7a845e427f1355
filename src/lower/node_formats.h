// The formats in which a node reads its operands and writes its outputs.
// They follow from the cast class of its op, before any [[rule]] on a single value and before
// [gemm] and [scaling] narrow factors. Changes nothing: lower_op adds the casts.
#pragma once

#include <string>
#include <vector>

#include "src/graph/op.h"
#include "src/lower/inputs.h"
#include "src/lower/model_border.h"
#include "src/lower/program_builder.h"

namespace lockstep {

// The wider format, which holds both; FP32 if neither holds the other.
const Format* wider(const Format* a, const Format* b);  // a: null for none

// Whether the op computes in FP32 whatever format it reads.
bool computes_wide(const Node& node, const OpDef& op);
// `wanted`, unless it cannot hold the op's compute format: an op that a rule computes in FP32 does
// not sum in FP16. `compute`: that rule's format, or null.
const Accumulator* wide_enough(const Accumulator* wanted, const Node& node, const OpDef& op,
                               const Format* compute);

class ClassFormats {
 public:
  // `builder` knows the formats of the values made so far.
  ClassFormats(const LowerInputs& in, const ModelBorder& border, const ProgramBuilder& builder)
      : in_(in), border_(border), builder_(builder) {}

  // The formats of a forward node. `compute`: the format a rule gives it, or null. `autocast`:
  // false in an autocast-disabled region.
  NodeFormats of_forward(const Node& node, const OpDef& op, const Format* compute,
                         bool autocast) const;

  // The promotion of the operands with dimensions, as in torch; without such operands, of the
  // single numbers. FP32 without either (all integers).
  const Format* followed(const Node& node, const OpDef& op,
                         const std::vector<const Format*>& operands) const;

  // The format of output k. `first`: the format for outputs that follow output 0.
  const Format* output(const Node& node, const OpDef& op, size_t k, const Format* compute,
                       const Format* first) const;

 private:
  CastClass class_of(const Node& node, const OpDef& op, bool autocast) const;
  const Format* own_format(const Node& node, const OpDef& op, const Format* by_class) const;
  const Format* inner_format(const Node& node, const OpDef& op, const Format* compute,
                             const Format* output) const;
  const Format* class_format(const Node& node, const OpDef& op, const Format* compute,
                             bool autocast) const;
  std::vector<const Format*> formats_inside(const Node& node) const;
  bool is_number(const Node& node, size_t operand) const;
  const Format* category_cast(const Node& node, const OpDef& op, size_t operand,
                              const Format* promoted) const;

  const LowerInputs& in_;
  const ModelBorder& border_;
  const ProgramBuilder& builder_;
};

}  // namespace lockstep
