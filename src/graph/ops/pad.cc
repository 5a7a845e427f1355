// pad: x with elements of one value around it. A negative number of elements cuts off elements.
#include <algorithm>

#include "src/graph/ops/movement.h"

namespace lockstep {
namespace {

// Elements before and after every dimension, from torch's order (last dimension first).
struct Pads {
  std::vector<int64_t> before, after;
};

Pads pads_of(const Node& node, const Shape& x) {
  const std::vector<int64_t> given = ints_attribute(node, "pads", {});
  require(given.size() % 2 == 0 && given.size() <= 2 * x.size(), node,
          "attribute 'pads' has " + std::to_string(given.size()) +
              " numbers, must have two for each of at most " + std::to_string(x.size()) +
              " dimensions",
          "before and after the last dimension, then the one before it");
  Pads pads{std::vector<int64_t>(x.size(), 0), std::vector<int64_t>(x.size(), 0)};
  for (size_t i = 0; i < given.size() / 2; ++i) {
    pads.before[x.size() - 1 - i] = given[2 * i];
    pads.after[x.size() - 1 - i] = given[2 * i + 1];
  }
  return pads;
}

std::vector<TensorType> infer_pad(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  Shape shape = inputs[0].shape;
  const Pads pads = pads_of(node, shape);
  for (size_t d = 0; d < shape.size(); ++d) shape[d] += pads.before[d] + pads.after[d];
  double_attribute(node, "value", 0);
  require(std::all_of(shape.begin(), shape.end(), [](int64_t extent) { return extent >= 1; }), node,
          "attribute 'pads' leaves " + to_string(shape) + " of operand 0 " +
              to_string(inputs[0].shape) + ", every extent must be at least 1");
  return {{shape}};
}

// The gradient is cut off where x was padded, and padded with zeros where x was cut off.
void pad_vjp(GradientBuilder& builder, const Node& node) {
  std::vector<int64_t> pads = ints_attribute(node, "pads", {});
  for (int64_t& pad : pads) pad = -pad;
  builder.add_node(node, "pad", {builder.output_gradient(node)}, {{"pads", pads}}, {0});
}

void run_pad(const OpCall& call) {
  const Shape &x = input_shape(call, 0), &y = output_shape(call, 0);
  const Pads pads = pads_of(call.node, x);
  const std::vector<int64_t> from = dense_strides(x), to = dense_strides(y);
  Shape common(x.size());
  int64_t x_offset = 0, y_offset = 0;
  for (size_t d = 0; d < x.size(); ++d) {
    common[d] = x[d] + std::min<int64_t>(pads.before[d], 0) + std::min<int64_t>(pads.after[d], 0);
    x_offset += std::max<int64_t>(-pads.before[d], 0) * from[d];
    y_offset += std::max<int64_t>(pads.before[d], 0) * to[d];
  }
  const bool overlaps =
      std::all_of(common.begin(), common.end(), [](int64_t extent) { return extent >= 1; });
  dispatch(call, [&]<typename T>(T*) {
    T* out = output<T>(call, 0);
    const MovementKernels<T>& movement = call.kernels.movement<T>();
    movement.fill(static_cast<T>(double_attribute(call.node, "value", 0)), out,
                  call.outputs[0]->size());
    if (!overlaps) return;
    movement.strided_copy(strided_dims(common, from, to), input<T>(call, 0) + x_offset,
                          out + y_offset);
  });
}

}  // namespace

std::vector<OpDef> pad_ops() {
  return {{.name = "pad",
           .help =
               "x with `value` (default 0) around it; pads: numbers of elements before and after "
               "the last dimension, then the one before it, ...; negative ones cut off",
           .source = "torch.nn.functional.pad, mode constant; CUDA autocast: not listed",
           .attributes = {"pads", "value"},
           .infer = infer_pad,
           .vjp = pad_vjp,
           .run = run_pad,
           .elements = {.fill_attribute = "value", .keeps_masks = true}}};
}

}  // namespace lockstep
