// reshape: the same elements, of any type, in the same order with another shape.
#include "src/graph/ops/cast.h"
#include "src/graph/ops/op_helpers.h"

namespace lockstep {
namespace {

std::vector<TensorType> infer_reshape(const Node& node, std::span<const TensorType> inputs) {
  const Shape shape = ints_attribute(node, "shape", {});
  for (const int64_t extent : shape) {
    require(extent >= 1, node,
            "attribute 'shape' is " + to_string(shape) + ", every extent must be at least 1");
  }
  require(element_count(shape) == element_count(inputs[0].shape), node,
          "attribute 'shape' " + to_string(shape) + " has " + std::to_string(element_count(shape)) +
              " elements, operand 0 " + to_string(inputs[0].shape) + " has " +
              std::to_string(element_count(inputs[0].shape)));
  return {{shape, inputs[0].element}};
}

void reshape_vjp(GradientBuilder& builder, const Node& node) {
  builder.add_node(node, "reshape", {builder.output_gradient(node)},
                   {{"shape", builder.graph().type_of(node.inputs[0]).shape}}, {0});
}

}  // namespace

std::vector<OpDef> reshape_ops() {
  return {{.name = "reshape",
           .help = "y = x in another shape with as many elements; its gradient is also a reshape",
           .source = "torch.reshape; CUDA autocast: not listed, runs in its input's type",
           .attributes = {"shape"},
           .infer = infer_reshape,
           .vjp = reshape_vjp,
           .run = run_copy,
           .foreign_names = {.torch = "view", .mxnet = "Flatten expand_dims"},
           .elements = {.keeps_masks = true, .is_view = true, .copies = true, .may_vanish = true}}};
}

}  // namespace lockstep
