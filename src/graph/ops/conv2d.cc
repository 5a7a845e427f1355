// conv2d: 2-d convolution (cross-correlation, as usual in the field), over all channels or in
// groups, with its three gradients. As in linear, the bias is added to the sum of products in the
// container's precision, before the rounding; or after one ([gemm] conv_bias), as PyTorch does with
// cuDNN.
#include "src/graph/ops/conv_attributes.h"

namespace lockstep {
namespace {

// floor((in + pads - dilation (kernel - 1) - 1) / stride) + 1; at most 0 when the kernel does not
// fit.
int64_t out_extent(int64_t in, int64_t kernel, int64_t stride, int64_t pads, int64_t dilation) {
  const int64_t room = in + pads - dilation * (kernel - 1) - 1;
  return room < 0 ? 0 : room / stride + 1;
}

// Checks x, w and the attributes against each other. All extents but the batch of dy follow from
// them. The padding below and on the right affects only the output's extents.
ConvShape conv_shape(const Node& node, const Shape& x, const Shape& w) {
  const ConvAttributes a = conv_attributes(node);
  require_image(node, x);
  require(w.size() == 4, node, "the weight is " + to_string(w) + ", must be (O,C/groups,R,S)");
  require(x[1] == w[1] * a.groups, node,
          "the image has " + std::to_string(x[1]) + " channels, the weight " + to_string(w) +
              " expects " + std::to_string(w[1] * a.groups) + " in " + std::to_string(a.groups) +
              " groups");
  require(w[0] % a.groups == 0, node,
          "the weight " + to_string(w) + " gives " + std::to_string(w[0]) +
              " channels, must be a multiple of the " + std::to_string(a.groups) + " groups");
  ConvShape s{};
  s.batch = x[0], s.in_channels = x[1], s.in_height = x[2], s.in_width = x[3];
  s.out_channels = w[0], s.kernel_height = w[2], s.kernel_width = w[3];
  a.set(s);
  s.out_height = out_extent(x[2], w[2], s.stride_h, a.padding[0] + a.padding[1], s.dilation_h);
  s.out_width = out_extent(x[3], w[3], s.stride_w, a.padding[2] + a.padding[3], s.dilation_w);
  require(s.out_height >= 1 && s.out_width >= 1, node,
          "the kernel of " + to_string(w) + " with dilation " +
              to_string(Shape{s.dilation_h, s.dilation_w}) + " does not fit into the image " +
              to_string(x) + " padded by " + to_string(a.padding));
  return s;
}

Shape output_extents(const Node& node, const Shape& x, const Shape& w) {
  const ConvShape s = conv_shape(node, x, w);
  return {s.batch, s.out_channels, s.out_height, s.out_width};
}

constexpr ConvKind kKind = {"conv2d_backward_input", "conv2d_backward_weight", output_extents};
using Rules = ConvRules<kKind>;

void run_conv2d(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    ConvArgs<T> conv{.shape = conv_shape(call.node, input_shape(call, 0), input_shape(call, 1))};
    conv.x = input<T>(call, 0), conv.w = input<T>(call, 1);
    conv.x_format = factor_format(call, 0), conv.w_format = factor_format(call, 1);
    run_pass(call, ConvPass::kForward, conv);
    add_bias<T>(call);
  });
}

void run_backward_input(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    ConvArgs<T> conv{.shape = conv_shape(call.node, output_shape(call, 0), input_shape(call, 0))};
    conv.w = input<T>(call, 0), conv.dy = input<T>(call, 1);
    conv.w_format = factor_format(call, 0), conv.dy_format = factor_format(call, 1);
    run_pass(call, ConvPass::kBackwardInput, conv);
  });
}

void run_backward_weight(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    ConvArgs<T> conv{.shape = conv_shape(call.node, input_shape(call, 0), output_shape(call, 0))};
    conv.x = input<T>(call, 0), conv.dy = input<T>(call, 1);
    conv.x_format = factor_format(call, 0), conv.dy_format = factor_format(call, 1);
    run_pass(call, ConvPass::kBackwardWeight, conv);
  });
}

std::vector<TensorType> infer_backward_bias(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  require_rank(node, inputs, 0, 4, "(N,O,P,Q)");
  return {{{inputs[0].shape[1]}}};
}

void run_backward_bias(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    const Shape& dy = input_shape(call, 0);
    call.kernels.of<T>().channel_sum(input<T>(call, 0), output<T>(call, 0), dy[0], dy[1],
                                     dy[2] * dy[3], call.reduce_accumulator);
  });
}

std::vector<ProductShape> forward_products(const Node& node, std::span<const TensorType> inputs) {
  return {conv_products(node, inputs[0].shape, node.outputs[0].shape, inputs[1].shape).to_small};
}
std::vector<ProductShape> backward_input_products(const Node& node,
                                                  std::span<const TensorType> inputs) {
  return {conv_products(node, node.outputs[0].shape, inputs[1].shape, inputs[0].shape).to_big};
}
std::vector<ProductShape> backward_weight_products(const Node& node,
                                                   std::span<const TensorType> inputs) {
  return {conv_products(node, inputs[0].shape, inputs[1].shape, node.outputs[0].shape).to_weight};
}

}  // namespace

std::vector<OpDef> conv2d_ops() {
  return {
      {.name = "conv2d",
       .help = "y = x * w + b; x (N,C,H,W), w (O,C/groups,R,S), b (O) or absent, y (N,O,P,Q); zero "
               "padding: one number, two (rows, columns) or four (top, bottom, left, right)",
       .source = "torch.nn.functional.conv2d; CUDA autocast: lower_precision_fp",
       .cast_class = CastClass::kLowPrecision,
       .min_inputs = 2,
       .max_inputs = 3,
       .attributes = {"stride", "padding", "dilation", "groups"},
       .infer = Rules::infer,
       .vjp = Rules::vjp,
       .run = run_conv2d,
       .foreign_names = {.mxnet = "Convolution"},
       .sums = {.of_products = true, .products = forward_products},
       .formats = {.rounds_inside = RoundsInside::kBias},
       .meaning = {.first_values = FirstValues::kFanIn}},
      {.name = "conv2d_backward_input",
       .help = "dx of conv2d; operands w, dy; sums over (o, r, s)",
       .source = "chain rule of conv2d",
       .cast_class = CastClass::kLowPrecision,
       .min_inputs = 2,
       .max_inputs = 2,
       .attributes = {"stride", "padding", "dilation", "groups", "input_shape"},
       .infer = Rules::infer_backward_input,
       .run = run_backward_input,
       .sums = {.of_products = true, .products = backward_input_products}},
      {.name = "conv2d_backward_weight",
       .help = "dw of conv2d; operands x, dy; sums over (n, p, q)",
       .source = "chain rule of conv2d",
       .cast_class = CastClass::kLowPrecision,
       .min_inputs = 2,
       .max_inputs = 2,
       .attributes = {"stride", "padding", "dilation", "groups", "weight_shape"},
       .infer = Rules::infer_backward_weight,
       .run = run_backward_weight,
       .sums = {.of_products = true, .products = backward_weight_products}},
      {.name = "conv2d_backward_bias",
       .help = "db[o] = sum over (n, p, q) of dy; dy (N,O,P,Q), db (O)",
       .source = "chain rule of conv2d",
       .cast_class = CastClass::kLowPrecision,
       .infer = infer_backward_bias,
       .run = run_backward_bias},
  };
}

}  // namespace lockstep
