// relu: y = max(x, 0), with gradient 0 at y == 0; NaN stays NaN. As in PyTorch, the backward pass
// reads y, which the next layer keeps anyway, so that x need not be kept.
#include "src/graph/ops/op_helpers.h"

namespace lockstep {
namespace {

std::vector<TensorType> infer_relu(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  return {inputs[0]};
}

void relu_vjp(GradientBuilder& builder, const Node& node) {
  builder.add_node(node, "relu_backward", {output_id(node, 0), builder.output_gradient(node)}, {},
                   {0});
}

void run_relu(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) { map_operand<T>(call, call.kernels.of<T>().relu); });
}

std::vector<TensorType> infer_backward(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  require_shape(node, inputs, 1, inputs[0].shape, "the shape of y");
  return {inputs[0]};
}

void run_backward(const OpCall& call) {
  dispatch(call,
           [&]<typename T>(T*) { map_operands<T>(call, call.kernels.of<T>().relu_backward); });
}

}  // namespace

std::vector<OpDef> relu_ops() {
  return {
      {.name = "relu",
       .help = "y = max(x, 0); any shape",
       .source = "torch.nn.functional.relu; CUDA autocast: not listed, runs in its input's type",
       .infer = infer_relu,
       .vjp = relu_vjp,
       .run = run_relu,
       .foreign_names = {.mxnet = "Activation"},
       .meaning = {.kink = positive_side}},
      {.name = "relu_backward",
       .help = "dx = dy where y > 0 or NaN, else 0; operands y, dy",
       .source = "chain rule of relu",
       .min_inputs = 2,
       .max_inputs = 2,
       .infer = infer_backward,
       .run = run_backward},
  };
}

}  // namespace lockstep
