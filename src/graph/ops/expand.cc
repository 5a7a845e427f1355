// expand: x repeated along dimensions of extent 1 and along new leading ones. -1 keeps an extent.
#include "src/graph/ops/broadcast.h"
#include "src/graph/ops/movement.h"

namespace lockstep {
namespace {

Shape expanded_shape(const Node& node, const Shape& x) {
  Shape shape = ints_attribute(node, "shape", {});
  const std::string given = to_string(shape);
  const bool has_room = shape.size() >= x.size();
  for (size_t d = 0; has_room && d < x.size(); ++d) {
    int64_t& extent = shape[shape.size() - x.size() + d];
    if (extent == -1) extent = x[d];
  }
  for (const int64_t extent : shape) {
    require(extent >= 1, node,
            "attribute 'shape' is " + given + ", every extent must be at least 1",
            "-1 keeps the extent of a dimension that operand 0 has");
  }
  require(
      has_room && broadcast_shape(node, x, shape) == shape, node,
      "attribute 'shape' is " + given + ", operand 0 " + to_string(x) + " must broadcast to it");
  return shape;
}

std::vector<TensorType> infer_expand(const Node& node, std::span<const TensorType> inputs) {
  return {{expanded_shape(node, inputs[0].shape), inputs[0].element}};
}

void expand_vjp(GradientBuilder& builder, const Node& node) {
  reduce_gradient(builder, node, 0, builder.output_gradient(node));
}

void run_expand(const OpCall& call) {
  const Shape &x = input_shape(call, 0), &y = output_shape(call, 0);
  const std::vector<int64_t> from = dense_strides(x);
  std::vector<int64_t> strides(y.size(), 0);
  for (size_t d = 0; d < x.size(); ++d) {
    if (x[d] != 1) strides[y.size() - x.size() + d] = from[d];
  }
  dispatch_any(call, [&]<typename T>(T*) { copy_strided(call, input<T>(call, 0), strides); });
}

}  // namespace

std::vector<OpDef> expand_ops() {
  return {{.name = "expand",
           .help = "x repeated to `shape`, as broadcasting does; its gradient is a sum_to",
           .source = "torch.Tensor.expand; CUDA autocast: not listed, runs in its input's type",
           .attributes = {"shape"},
           .infer = infer_expand,
           .vjp = expand_vjp,
           .run = run_expand,
           .elements = {.keeps_masks = true, .is_view = true, .may_vanish = true}}};
}

}  // namespace lockstep
