// cast, cast_like: the same numbers in a format that the model names, or in that of another value.
// detach: the same numbers without a gradient.
#include "src/graph/ops/cast.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "emulation/format/format.h"
#include "src/graph/ops/op_helpers.h"

namespace lockstep {
namespace {

std::vector<TensorType> infer_same(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  return {inputs[0]};
}

std::vector<TensorType> infer_cast_like(const Node& node, std::span<const TensorType> inputs) {
  bool_attribute(node, "saturate", false);  // its type is checked here
  return infer_same(node, inputs);
}

// The largest numbers of the mask's own format are those of the lane's: torch.finfo(like.dtype).
void run_cast_like(const OpCall& call) {
  run_copy(call);
  if (!bool_attribute(call.node, "saturate", false) || call.inner.format == nullptr) return;
  const double most = call.inner.format->max_finite;
  dispatch(call, [&]<typename T>(T*) {
    for (T& y : call.outputs[0]->as<T>()) {
      if (std::isfinite(y)) y = static_cast<T>(std::clamp<double>(y, -most, most));
    }
  });
}

std::vector<TensorType> infer_cast(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  require(node.attributes.contains("dtype"), node, "attribute 'dtype' is missing",
          "the name of a format, e.g. \"fp16\"");
  try {
    find_format(string_attribute(node, "dtype", ""));
  } catch (const InputError& error) {
    require(false, node, std::string("attribute 'dtype': ") + error.what());
  }
  return {inputs[0]};
}

}  // namespace

void run_copy(const OpCall& call) {
  std::memcpy(call.outputs[0]->raw(), call.inputs[0]->raw(), call.inputs[0]->bytes());
}

void cast_vjp(GradientBuilder& builder, const Node& node) {
  builder.add_node(node, "cast_backward", {builder.output_gradient(node)}, {}, {0});
}

std::vector<OpDef> cast_ops() {
  return {
      {.name = "cast",
       .help =
           "y = x in the format `dtype`; lane fp64 stays in fp64, the others compute fp64 in fp32",
       .source = "torch.Tensor.to; written in the model, so no cast class applies",
       .attributes = {"dtype"},
       .infer = infer_cast,
       .vjp = cast_vjp,
       .run = run_copy,
       .formats = {.attribute = "dtype"},
       .elements = {.keeps_masks = true, .copies = true}},
      {.name = "cast_like",
       .help = "y = x in the lane's format of `like`; operands x, like; saturate: finite numbers "
               "beyond the format become its largest one",
       .source = "torch.Tensor.type_as, and x.to(like.dtype); written in the model",
       .min_inputs = 2,
       .max_inputs = 2,
       .attributes = {"saturate"},
       .infer = infer_cast_like,
       .vjp = cast_vjp,
       .run = run_cast_like,
       .formats = {.follow_operands = {1}},
       .elements = {.keeps_masks = true}},
      {.name = "cast_backward",
       .help = "dx = dy in x's format; operand dy",
       .source = "torch's derivative of to",
       .infer = infer_same,
       .run = run_copy,
       .elements = {.copies = true}},
      {.name = "detach",
       .help = "y = x; no gradient flows through it",
       .source = "torch.Tensor.detach",
       .infer = infer_same,
       .run = run_copy,
       .differentiable_outputs = 0,
       .elements = {.keeps_masks = true, .is_view = true, .copies = true}},
  };
}

}  // namespace lockstep
