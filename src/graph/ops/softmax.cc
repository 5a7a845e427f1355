// softmax over the last dimension.
#include "src/graph/ops/op_helpers.h"

namespace lockstep {
namespace {

std::vector<TensorType> infer_softmax(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  const int64_t rank = static_cast<int64_t>(inputs[0].shape.size());
  require(rank >= 1, node, "operand 0 is a scalar, must be (...,C)");
  const int64_t dim = int_attribute(node, "dim", -1);
  require(
      dim == -1 || dim == rank - 1, node,
      "attribute 'dim' is " + std::to_string(dim) + ", must be -1 or " + std::to_string(rank - 1),
      "only the last dimension is supported");
  return {inputs[0]};
}

void softmax_vjp(GradientBuilder& builder, const Node& node) {
  builder.add_node(node, "softmax_backward", {output_id(node, 0), builder.output_gradient(node)},
                   {}, {0});
}

void run_softmax(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    const int64_t cols = input_shape(call, 0).back();
    call.kernels.of<T>().softmax(input<T>(call, 0), output<T>(call, 0),
                                 call.inputs[0]->size() / cols, cols, call.reduce_accumulator);
  });
}

std::vector<TensorType> infer_backward(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  require(!inputs[0].shape.empty(), node, "operand 0 is a scalar, must be (...,C)");
  require_shape(node, inputs, 1, inputs[0].shape, "the shape of y");
  return {inputs[0]};
}

void run_backward(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    const int64_t cols = input_shape(call, 0).back();
    call.kernels.of<T>().softmax_backward(input<T>(call, 0), input<T>(call, 1), output<T>(call, 0),
                                          call.inputs[0]->size() / cols, cols,
                                          call.reduce_accumulator);
  });
}

}  // namespace

std::vector<OpDef> softmax_ops() {
  return {
      {.name = "softmax",
       .help = "y = exp(x - max) / sum exp(x - max) along the last dimension; x (...,C)",
       .source = "torch.softmax; CUDA autocast: fp32_set_opt_dtype",
       .cast_class = CastClass::kFp32,
       .attributes = {"dim"},
       .infer = infer_softmax,
       .vjp = softmax_vjp,
       .run = run_softmax},
      {.name = "softmax_backward",
       .help = "dx = y (dy - sum dy y) along the last dimension; operands y, dy",
       .source = "chain rule of softmax",
       .cast_class = CastClass::kFp32,
       .min_inputs = 2,
       .max_inputs = 2,
       .infer = infer_backward,
       .run = run_backward},
  };
}

}  // namespace lockstep
