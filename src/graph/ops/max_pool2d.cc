// max_pool2d: the largest value of each window, and its place (h*W + w, output 1, an integer). On
// ties the first in scan order wins; padding never wins.
#include "src/graph/ops/pool_windows.h"

namespace lockstep {
namespace {

std::vector<TensorType> infer_max_pool2d(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  const Shape y = output_extents(pool_shape(node, inputs[0].shape));
  return {{y}, {y, ElementType::kInt}};
}

void max_pool2d_vjp(GradientBuilder& builder, const Node& node) {
  builder.add_node(node, "max_pool2d_backward", {output_id(node, 1), builder.output_gradient(node)},
                   with_operand_shape(builder, node, "input_shape", 0), {0});
}

void run_max_pool2d(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    call.kernels.of<T>().max_pool2d(pool_shape(call.node, input_shape(call, 0)), input<T>(call, 0),
                                    output<T>(call, 0), output<int32_t>(call, 1));
  });
}

std::vector<TensorType> infer_backward(const Node& node, std::span<const TensorType> inputs) {
  require_int(node, inputs, 0);
  require_float(node, inputs, 1);
  const Shape x = ints_attribute(node, "input_shape", {});
  const Shape y = output_extents(pool_shape(node, x));
  for (size_t i = 0; i < 2; ++i) require_shape(node, inputs, i, y, "(N,C,P,Q)");
  return {{x}};
}

void run_backward(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    call.kernels.of<T>().max_pool2d_backward(pool_shape(call.node, output_shape(call, 0)),
                                             input<T>(call, 1), input<int32_t>(call, 0),
                                             output<T>(call, 0));
  });
}

}  // namespace

std::vector<OpDef> max_pool2d_ops() {
  return {
      {.name = "max_pool2d",
       .help =
           "y = max over each window; x (N,C,H,W), y and argmax (N,C,P,Q); stride: the kernel's "
           "if absent",
       .source =
           "torch.nn.functional.max_pool2d; CUDA autocast: not listed, runs in its input's type",
       .attributes = {"kernel", "stride", "padding", "dilation", "ceil_mode"},
       .infer = infer_max_pool2d,
       .vjp = max_pool2d_vjp,
       .run = run_max_pool2d,
       .foreign_names = {.mxnet = "Pooling"},
       .formats = {.integer_bytes = 8},
       .meaning = {.winner_output = 1}},
      {.name = "max_pool2d_backward",
       .help = "dx[argmax] += dy, 0 elsewhere; operands argmax, dy",
       .source = "chain rule of max_pool2d",
       .min_inputs = 2,
       .max_inputs = 2,
       .attributes = {"kernel", "stride", "padding", "dilation", "ceil_mode", "input_shape"},
       .infer = infer_backward,
       .run = run_backward},
  };
}

}  // namespace lockstep
