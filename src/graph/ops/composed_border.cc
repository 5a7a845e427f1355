// composed_operand, composed_result: the borders of an op that is one kernel in PyTorch and several
// nodes in a graph. They pass numbers through, in formats decided by the class of the op `of`.
#include <algorithm>

#include "emulation/format/format.h"
#include "src/graph/composed_ops.h"
#include "src/graph/ops/cast.h"
#include "src/graph/ops/op_helpers.h"

namespace lockstep {
namespace {

constexpr std::string_view kWide = "fp32";

std::vector<TensorType> infer_border(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  const std::vector<std::string> names = listable_op_names();
  const std::string of = string_attribute(node, "of", "");
  require(std::ranges::find(names, of) != names.end(), node,
          "attribute 'of' is '" + of + "', must be an op that has a cast class",
          did_you_mean(of, names));
  const std::string dtype = string_attribute(node, "dtype", std::string(kWide));
  require(dtype == kWide, node, "attribute 'dtype' is '" + dtype + "', must be fp32");
  return {inputs[0]};
}

}  // namespace

std::vector<OpDef> composed_border_ops() {
  return {
      {.name = "composed_operand",
       .help =
           "y = x in the format that autocast gives the operands of the op `of`; `dtype` fp32: "
           "then widened, and FP32 in every policy up to composed_result; `own`: a constant that "
           "the op makes, FP32 in every policy",
       .source = "PyTorch's kernels of 16-bit floats compute in FP32 (at::opmath_type)",
       .attributes = {"of", "dtype", kOwnAttribute},
       .infer = infer_border,
       .vjp = cast_vjp,
       .run = run_copy,
       .formats = {.attribute = "dtype", .class_attribute = "of"},
       .elements = {.keeps_masks = true, .is_view = true, .copies = true}},
      {.name = "composed_result",
       .help = "y = x in the format of the op `of`'s result; operands x, then those of the op",
       .source = "the class of the op in autocast's lists, else type promotion of its operands",
       .min_inputs = 2,
       .max_inputs = 4,
       .attributes = {"of"},
       .infer = infer_border,
       .vjp = cast_vjp,
       .run = run_copy,
       .formats = {.follow_operands = {1, 2, 3}, .class_attribute = "of", .class_of_result = true},
       .elements = {.keeps_masks = true, .is_view = true, .copies = true}},
  };
}

}  // namespace lockstep
