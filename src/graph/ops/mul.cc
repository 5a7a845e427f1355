// mul: y = a b, element by element, with numpy's broadcasting. Its gradients are mul nodes: da = dy
// b.
#include "src/graph/ops/broadcast.h"
#include "src/graph/ops/op_helpers.h"

namespace lockstep {
namespace {

std::vector<TensorType> infer_mul(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  return {{broadcast_shape(node, inputs[0].shape, inputs[1].shape)}};
}

void mul_vjp(GradientBuilder& builder, const Node& node) {
  const std::string dy = builder.output_gradient(node);
  for (size_t operand = 0; operand < 2; ++operand) {
    if (!builder.needs_gradient(node, operand)) continue;
    const bool same = builder.graph().type_of(node.inputs[operand]) == node.outputs[0];
    const std::string product = builder.add_node(node, "mul", {dy, node.inputs[1 - operand]}, {},
                                                 {same ? static_cast<int>(operand) : -1});
    if (!same) reduce_gradient(builder, node, operand, product);
  }
}

void run_mul(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    const Shape& shape = output_shape(call, 0);
    std::vector<T> a_storage, b_storage;
    const T* a = expand(input<T>(call, 0), input_shape(call, 0), shape, a_storage);
    const T* b = expand(input<T>(call, 1), input_shape(call, 1), shape, b_storage);
    call.kernels.of<T>().mul(a, b, output<T>(call, 0), call.outputs[0]->size());
  });
}

}  // namespace

std::vector<OpDef> mul_ops() {
  return {{.name = "mul",
           .help = "y = a b, element by element; shapes equal or broadcast as in numpy",
           .source = "torch.mul; CUDA autocast: not listed, type promotion decides",
           .min_inputs = 2,
           .max_inputs = 2,
           .infer = infer_mul,
           .vjp = mul_vjp,
           .run = run_mul}};
}

}  // namespace lockstep
