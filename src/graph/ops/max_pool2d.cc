// max_pool2d: the largest value of each window, and where it stood (h*W + w, output 1, an integer).
// Ties go to the first in scan order, padding never wins. No dilation, no ceil_mode.
#include "src/graph/ops/op_helpers.h"

namespace lockstep {
namespace {

PoolShape pool_shape(const Node& node, const Shape& x) {
  require(x.size() == 4, node, "the image is " + to_string(x) + ", must be (N,C,H,W)");
  const std::vector<int64_t> kernel = pair_attribute(node, "kernel", {});
  const std::vector<int64_t> stride = pair_attribute(node, "stride", kernel);
  const std::vector<int64_t> pad = pair_attribute(node, "padding", {0, 0});
  PoolShape s{};
  s.batch = x[0], s.channels = x[1], s.in_height = x[2], s.in_width = x[3];
  s.kernel_h = kernel[0], s.kernel_w = kernel[1], s.stride_h = stride[0], s.stride_w = stride[1];
  s.pad_h = pad[0], s.pad_w = pad[1];
  require(s.kernel_h >= 1 && s.kernel_w >= 1, node,
          "attribute 'kernel' is " + to_string(kernel) + ", must be at least 1");
  require(s.stride_h >= 1 && s.stride_w >= 1, node,
          "attribute 'stride' is " + to_string(stride) + ", must be at least 1");
  // A wider padding would leave windows without any value.
  require(s.pad_h >= 0 && s.pad_w >= 0 && 2 * s.pad_h <= s.kernel_h && 2 * s.pad_w <= s.kernel_w,
          node,
          "attribute 'padding' is " + to_string(pad) + ", must be between 0 and half the kernel " +
              to_string(kernel));
  const int64_t room_h = s.in_height + 2 * s.pad_h - s.kernel_h;
  const int64_t room_w = s.in_width + 2 * s.pad_w - s.kernel_w;
  require(room_h >= 0 && room_w >= 0, node,
          "the kernel " + to_string(kernel) + " does not fit into the image " + to_string(x) +
              " padded by " + to_string(pad));
  s.out_height = room_h / s.stride_h + 1;
  s.out_width = room_w / s.stride_w + 1;
  return s;
}

Shape output_extents(const PoolShape& s) {
  return {s.batch, s.channels, s.out_height, s.out_width};
}

std::vector<TensorType> infer_max_pool2d(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  const Shape y = output_extents(pool_shape(node, inputs[0].shape));
  return {{y}, {y, ElementType::kInt}};
}

void max_pool2d_vjp(GradientBuilder& builder, const Node& node) {
  Attributes attributes = node.attributes;
  attributes["input_shape"] = builder.graph().type_of(node.inputs[0]).shape;
  builder.add_node(node, "max_pool2d_backward", {output_id(node, 1), builder.output_gradient(node)},
                   attributes, {0});
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
           "where absent",
       .source =
           "torch.nn.functional.max_pool2d; CUDA autocast: not listed, runs in its input's type",
       .attributes = {"kernel", "stride", "padding"},
       .infer = infer_max_pool2d,
       .vjp = max_pool2d_vjp,
       .run = run_max_pool2d},
      {.name = "max_pool2d_backward",
       .help = "dx[argmax] += dy, 0 elsewhere; operands argmax, dy",
       .source = "chain rule of max_pool2d",
       .min_inputs = 2,
       .max_inputs = 2,
       .attributes = {"kernel", "stride", "padding", "input_shape"},
       .infer = infer_backward,
       .run = run_backward},
  };
}

}  // namespace lockstep
