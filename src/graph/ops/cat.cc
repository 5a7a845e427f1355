// cat: its operands concatenated along one dimension.
#include "src/graph/ops/movement.h"
#include "src/graph/ops/rows.h"

namespace lockstep {
namespace {

constexpr int kMaxOperands = 1 << 16;  // more than any model has

std::vector<TensorType> infer_cat(const Node& node, std::span<const TensorType> inputs) {
  TensorType y = inputs[0];
  const auto dim = static_cast<size_t>(single_dim(node, y.shape, 0));
  for (size_t i = 1; i < inputs.size(); ++i) {
    const Shape& x = inputs[i].shape;
    Shape expected = inputs[0].shape;
    if (dim < x.size()) expected[dim] = x[dim];
    require(x == expected && inputs[i].element == y.element, node,
            "operand " + std::to_string(i) + " is " + to_string(inputs[i]) + ", operand 0 is " +
                to_string(inputs[0]) + ", must agree in type and in all dimensions but " +
                std::to_string(dim));
    y.shape[dim] += x[dim];
  }
  return {y};
}

void cat_vjp(GradientBuilder& builder, const Node& node) {
  const Graph& graph = builder.graph();
  const auto dim = single_dim(node, graph.type_of(node.inputs[0]).shape, 0);
  const std::string dy = builder.output_gradient(node);
  int64_t start = 0;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const int64_t end = start + graph.type_of(node.inputs[i]).shape[static_cast<size_t>(dim)];
    if (builder.needs_gradient(node, i)) {
      builder.add_node(node, "slice", {dy}, {{"dim", dim}, {"start", start}, {"end", end}},
                       {static_cast<int>(i)});
    }
    start = end;
  }
}

void run_cat(const OpCall& call) {
  const auto dim = static_cast<size_t>(single_dim(call.node, input_shape(call, 0), 0));
  const std::vector<int64_t> strides = dense_strides(output_shape(call, 0));
  dispatch_any(call, [&]<typename T>(T*) {
    T* y = output<T>(call, 0);
    for (size_t i = 0; i < call.inputs.size(); ++i) {
      const Shape& x = input_shape(call, i);
      call.kernels.movement<T>().strided_copy(strided_dims(x, dense_strides(x), strides),
                                              input<T>(call, i), y);
      y += x[dim] * strides[dim];
    }
  });
}

}  // namespace

std::vector<OpDef> cat_ops() {
  return {{.name = "cat",
           .help = "the operands concatenated along dim (default 0), in the widest of their "
                   "formats; its gradients are slices",
           .source = "torch.cat; CUDA autocast: not listed, type promotion",
           .max_inputs = kMaxOperands,
           .attributes = {"dim"},
           .infer = infer_cat,
           .vjp = cat_vjp,
           .run = run_cat,
           .foreign_names = {.mxnet = "Concat"},
           .elements = {.keeps_masks = true}}};
}

}  // namespace lockstep
