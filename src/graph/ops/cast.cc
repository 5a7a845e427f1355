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

// torch.finfo: which of a format's limits the attribute names.
double limit_of(const Format& format, std::string_view name) {
  if (name == "max") return format.max_finite;
  return name == "eps" ? format.machine_epsilon() : format.min_normal();
}

std::vector<TensorType> infer_cast_like(const Node& node, std::span<const TensorType> inputs) {
  bool_attribute(node, "saturate", false);  // its type is checked here
  const std::string limit = string_attribute(node, "limit", "");
  require(limit.empty() || limit == "max" || limit == "eps" || limit == "tiny", node,
          "attribute 'limit' is '" + limit + "'", "max, eps or tiny");
  return infer_same(node, inputs);
}

// The limits are those of the lane's format of `like`: torch.finfo(like.dtype). FP64, in which the
// truth is computed, has FP32's.
void run_cast_like(const OpCall& call) {
  run_copy(call);
  const std::string limit = string_attribute(call.node, "limit", "");
  const bool saturates = bool_attribute(call.node, "saturate", false);
  if (limit.empty() && (!saturates || call.inner.format == nullptr)) return;
  const bool is_wide = call.inner.format == nullptr || call.inner.format->is_fp64();
  const Format& own = is_wide ? find_format("fp32") : *call.inner.format;
  dispatch(call, [&]<typename T>(T*) {
    for (T& y : call.outputs[0]->as<T>()) {
      if (!limit.empty()) y = static_cast<T>(static_cast<double>(y) * limit_of(own, limit));
      if (saturates && std::isfinite(y)) {
        y = static_cast<T>(std::clamp<double>(y, -own.max_finite, own.max_finite));
      }
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
               "beyond the format become its largest one; limit: y = x times that limit of "
               "the format (max, eps, tiny)",
       .source = "torch.Tensor.type_as, and x.to(like.dtype); written in the model",
       .min_inputs = 2,
       .max_inputs = 2,
       .attributes = {"saturate", "limit"},
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
