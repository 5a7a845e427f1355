// permute: the same elements with their dimensions in another order.
#include <algorithm>

#include "src/graph/ops/movement.h"

namespace lockstep {
namespace {

// The attribute `dims` with negative numbers counted from the end.
std::vector<int64_t> permutation(const Node& node, const Shape& shape) {
  std::vector<int64_t> dims = ints_attribute(node, "dims", {});
  const std::string given = to_string(dims);
  const auto rank = static_cast<int64_t>(shape.size());
  for (int64_t& dim : dims) dim += dim < 0 ? rank : 0;
  std::vector<int64_t> sorted = dims, all(shape.size());
  std::sort(sorted.begin(), sorted.end());
  for (size_t d = 0; d < all.size(); ++d) all[d] = static_cast<int64_t>(d);
  require(sorted == all, node,
          "attribute 'dims' is " + given + ", must name each of the " + std::to_string(rank) +
              " dimensions of operand 0 " + to_string(shape) + " once");
  return dims;
}

std::vector<TensorType> infer_permute(const Node& node, std::span<const TensorType> inputs) {
  Shape shape;
  for (const int64_t dim : permutation(node, inputs[0].shape)) {
    shape.push_back(inputs[0].shape[static_cast<size_t>(dim)]);
  }
  return {{shape, inputs[0].element}};
}

void permute_vjp(GradientBuilder& builder, const Node& node) {
  const std::vector<int64_t> dims =
      permutation(node, builder.graph().type_of(node.inputs[0]).shape);
  std::vector<int64_t> inverse(dims.size());
  for (size_t d = 0; d < dims.size(); ++d) {
    inverse[static_cast<size_t>(dims[d])] = static_cast<int64_t>(d);
  }
  builder.add_node(node, "permute", {builder.output_gradient(node)}, {{"dims", inverse}}, {0});
}

void run_permute(const OpCall& call) {
  const std::vector<int64_t> from = dense_strides(input_shape(call, 0));
  std::vector<int64_t> strides;
  for (const int64_t dim : permutation(call.node, input_shape(call, 0))) {
    strides.push_back(from[static_cast<size_t>(dim)]);
  }
  dispatch_any(call, [&]<typename T>(T*) { copy_strided(call, input<T>(call, 0), strides); });
}

}  // namespace

std::vector<OpDef> permute_ops() {
  return {{.name = "permute",
           .help = "dimension d of y is dimension dims[d] of x; its gradient is also a permute",
           .source = "torch.permute; CUDA autocast: not listed, runs in its input's type",
           .attributes = {"dims"},
           .infer = infer_permute,
           .vjp = permute_vjp,
           .run = run_permute,
           .foreign_names = {.mxnet = "transpose"},
           .elements = {.keeps_masks = true, .is_view = true, .may_vanish = true}}};
}

}  // namespace lockstep
