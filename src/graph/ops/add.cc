// add: y = a + b with numpy's broadcasting. Also joins the gradients of a value used several times.
#include "src/graph/ops/broadcast.h"
#include "src/graph/ops/op_helpers.h"

namespace lockstep {
namespace {

std::vector<TensorType> infer_add(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  return {{broadcast_shape(node, inputs[0].shape, inputs[1].shape)}};
}

void add_vjp(GradientBuilder& builder, const Node& node) {
  const std::string dy = builder.output_gradient(node);
  for (size_t operand = 0; operand < 2; ++operand) {
    if (!builder.needs_gradient(node, operand)) continue;
    const std::string& value = node.inputs[operand];
    const Graph& graph = builder.graph();
    // dy itself is the gradient, unless it has to be summed. A parameter gets a node of its own (a
    // sum over nothing), so that its gradient has its own site and its own format.
    if (graph.type_of(value) == node.outputs[0] && !graph.parameter_of(value)) {
      builder.pass_gradient(node, operand, dy);
    } else {
      reduce_gradient(builder, node, operand, dy);
    }
  }
}

void run_add(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    const Shape& shape = output_shape(call, 0);
    std::vector<T> a_storage, b_storage;
    const T* a = expand(input<T>(call, 0), input_shape(call, 0), shape, a_storage);
    const T* b = expand(input<T>(call, 1), input_shape(call, 1), shape, b_storage);
    call.kernels.of<T>().add(a, b, output<T>(call, 0), call.outputs[0]->size());
  });
}

}  // namespace

std::vector<OpDef> add_ops() {
  return {{.name = "add",
           .help = "y = a + b; shapes equal or broadcast as in numpy",
           .source = "torch.add; CUDA autocast: not listed, type promotion decides",
           .min_inputs = 2,
           .max_inputs = 2,
           .infer = infer_add,
           .vjp = add_vjp,
           .run = run_add}};
}

}  // namespace lockstep
