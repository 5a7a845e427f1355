// mse_loss: the mean of (x - target)^2, torch's default reduction.
#include "src/graph/ops/op_helpers.h"

namespace lockstep {
namespace {

std::vector<TensorType> infer_mse_loss(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  require_shape(node, inputs, 1, inputs[0].shape, "the shape of x");
  return {{}};
}

void mse_loss_vjp(GradientBuilder& builder, const Node& node) {
  const std::string dloss = builder.output_gradient(node);
  // The loss is symmetric: the target's gradient is that of the swapped operands.
  for (int operand = 0; operand < 2; ++operand) {
    if (!builder.needs_gradient(node, static_cast<size_t>(operand))) continue;
    builder.add_node(node, "mse_loss_backward",
                     {node.inputs[static_cast<size_t>(operand)],
                      node.inputs[static_cast<size_t>(1 - operand)], dloss},
                     {}, {operand});
  }
}

void run_mse_loss(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    call.kernels.of<T>().mse_loss(input<T>(call, 0), input<T>(call, 1), output<T>(call, 0),
                                  call.inputs[0]->size(), call.reduce_accumulator);
  });
}

std::vector<TensorType> infer_backward(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  require_shape(node, inputs, 1, inputs[0].shape, "the shape of x");
  require_shape(node, inputs, 2, {}, "a scalar, the gradient of the loss");
  return {inputs[0]};
}

void run_backward(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    call.kernels.of<T>().mse_loss_backward(input<T>(call, 0), input<T>(call, 1), *input<T>(call, 2),
                                           output<T>(call, 0), call.inputs[0]->size());
  });
}

}  // namespace

std::vector<OpDef> mse_loss_ops() {
  return {
      {.name = "mse_loss",
       .help = "mean of (x - target)^2; operands of equal shape",
       .source = "torch.nn.functional.mse_loss; CUDA autocast: fp32",
       .cast_class = CastClass::kFp32,
       .min_inputs = 2,
       .max_inputs = 2,
       .infer = infer_mse_loss,
       .vjp = mse_loss_vjp,
       .run = run_mse_loss},
      {.name = "mse_loss_backward",
       .help = "dx = 2 (x - target) dloss / count; operands x, target, dloss",
       .source = "chain rule of mse_loss",
       .cast_class = CastClass::kFp32,
       .min_inputs = 3,
       .max_inputs = 3,
       .infer = infer_backward,
       .run = run_backward},
  };
}

}  // namespace lockstep
