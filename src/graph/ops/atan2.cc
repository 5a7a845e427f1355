// atan2: the angle of the point (b, a), with numpy's broadcasting.
#include "emulation/math/trigonometry.h"
#include "src/graph/ops/broadcast.h"
#include "src/graph/ops/op_helpers.h"

namespace lockstep {
namespace {

std::vector<TensorType> infer_atan2(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  return {{broadcast_shape(node, inputs[0].shape, inputs[1].shape)}};
}

// da = dy b / (a^2 + b^2), db = -dy a / (a^2 + b^2)
void vjp(GradientBuilder& builder, const Node& node) {
  const std::string &a = node.inputs.at(0), &b = node.inputs.at(1);
  const std::string dy = builder.output_gradient(node);
  const auto inner = [&](std::string_view op, std::vector<std::string> inputs) {
    return builder.add_node(node, op, std::move(inputs), {}, {-1});
  };
  const std::string square = inner("add", {inner("mul", {a, a}), inner("mul", {b, b})});
  if (builder.needs_gradient(node, 0)) {
    add_broadcast_gradient(builder, node, 0, "mul", {dy, inner("div", {b, square})});
  }
  if (builder.needs_gradient(node, 1)) {
    const std::string slope = inner("neg", {inner("div", {a, square})});
    add_broadcast_gradient(builder, node, 1, "mul", {dy, slope});
  }
}

void run_atan2(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    run_binary<T>(call, [](const T* a, const T* b, T* y, int64_t count) {
      for (int64_t i = 0; i < count; ++i) y[i] = lockstep_atan2(a[i], b[i]);
    });
  });
}

}  // namespace

std::vector<OpDef> atan2_ops() {
  return {{.name = "atan2",
           .help = "y = the angle of the point (b, a), from -pi to pi; shapes broadcast",
           .source = "torch.atan2; CUDA autocast: promote",
           .cast_class = CastClass::kPromote,
           .min_inputs = 2,
           .max_inputs = 2,
           .infer = infer_atan2,
           .vjp = vjp,
           .run = run_atan2}};
}

}  // namespace lockstep
