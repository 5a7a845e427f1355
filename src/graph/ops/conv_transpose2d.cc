// conv_transpose2d: conv2d's input gradient, applied to x, as a separate op. With w (Cin,
// Cout/groups, R, S) read as the weight of a convolution from y's channels to x's:
//   y  = backward_input(x, w)     sums over (cin, r, s)    the kernels of conv2d, with their orders
//   dx = forward(dy, w)           sums over (cout, r, s)
//   dw = backward_weight(dy, x)   sums over (n, h, w)
#include <algorithm>

#include "src/graph/ops/conv_attributes.h"

namespace lockstep {
namespace {

// The convolution from y to x whose gradient this op is.
ConvShape conv_shape(const Node& node, const Shape& x, const Shape& w) {
  const ConvAttributes a = conv_attributes(node);
  const std::vector<int64_t> extra = pair_attribute(node, "output_padding", {0, 0});
  for (size_t d = 0; d < extra.size(); ++d) {
    const int64_t limit = std::max(a.stride[d], a.dilation[d]);
    require(extra[d] >= 0 && extra[d] < limit, node,
            "attribute 'output_padding' is " + to_string(extra) +
                ", must not be negative and less than stride or dilation, here " +
                std::to_string(limit));
  }
  require_image(node, x);
  require(w.size() == 4, node, "the weight is " + to_string(w) + ", must be (C,O/groups,R,S)");
  require(x[1] == w[0] && w[0] % a.groups == 0, node,
          "the image has " + std::to_string(x[1]) +
              " channels, must be the first extent of the "
              "weight " +
              to_string(w) + " and a multiple of the " + std::to_string(a.groups) + " groups");
  ConvShape s{};
  s.batch = x[0], s.out_channels = x[1], s.out_height = x[2], s.out_width = x[3];
  s.in_channels = w[1] * a.groups, s.kernel_height = w[2], s.kernel_width = w[3];
  a.set(s);
  s.in_height = (x[2] - 1) * s.stride_h - a.padding[0] - a.padding[1] + s.dilation_h * (w[2] - 1) +
                extra[0] + 1;
  s.in_width = (x[3] - 1) * s.stride_w - a.padding[2] - a.padding[3] + s.dilation_w * (w[3] - 1) +
               extra[1] + 1;
  require(s.in_height >= 1 && s.in_width >= 1, node,
          "attribute 'padding' cuts the output to " + to_string(Shape{s.in_height, s.in_width}) +
              ", every extent must be at least 1");
  return s;
}

Shape output_extents(const Node& node, const Shape& x, const Shape& w) {
  const ConvShape s = conv_shape(node, x, w);
  return {s.batch, s.in_channels, s.in_height, s.in_width};
}

constexpr ConvKind kKind = {"conv_transpose2d_backward_input", "conv_transpose2d_backward_weight",
                            output_extents};
using Rules = ConvRules<kKind>;

void run(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    ConvArgs<T> conv{.shape = conv_shape(call.node, input_shape(call, 0), input_shape(call, 1))};
    conv.dy = input<T>(call, 0), conv.w = input<T>(call, 1);
    conv.dy_format = factor_format(call, 0), conv.w_format = factor_format(call, 1);
    run_pass(call, ConvPass::kBackwardInput, conv);
    add_bias<T>(call);
  });
}

void run_backward_input(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    ConvArgs<T> conv{.shape = conv_shape(call.node, output_shape(call, 0), input_shape(call, 0))};
    conv.w = input<T>(call, 0), conv.x = input<T>(call, 1);
    conv.w_format = factor_format(call, 0), conv.x_format = factor_format(call, 1);
    run_pass(call, ConvPass::kForward, conv);
  });
}

void run_backward_weight(const OpCall& call) {
  dispatch(call, [&]<typename T>(T*) {
    ConvArgs<T> conv{.shape = conv_shape(call.node, input_shape(call, 0), output_shape(call, 0))};
    conv.dy = input<T>(call, 0), conv.x = input<T>(call, 1);
    conv.dy_format = factor_format(call, 0), conv.x_format = factor_format(call, 1);
    run_pass(call, ConvPass::kBackwardWeight, conv);
  });
}

// x is the small image, y the big one.
std::vector<ProductShape> forward_products(const Node& node, std::span<const TensorType> inputs) {
  return {conv_products(node, node.outputs[0].shape, inputs[0].shape, inputs[1].shape).to_big};
}
std::vector<ProductShape> backward_input_products(const Node& node,
                                                  std::span<const TensorType> inputs) {
  return {conv_products(node, inputs[1].shape, node.outputs[0].shape, inputs[0].shape).to_small};
}
std::vector<ProductShape> backward_weight_products(const Node& node,
                                                   std::span<const TensorType> inputs) {
  return {conv_products(node, inputs[1].shape, inputs[0].shape, node.outputs[0].shape).to_weight};
}

}  // namespace

std::vector<OpDef> conv_transpose2d_ops() {
  const std::vector<std::string_view> attributes = {"stride", "padding", "output_padding",
                                                    "dilation", "groups"};
  const auto with = [&](std::string_view name) {
    std::vector<std::string_view> all = attributes;
    all.push_back(name);
    return all;
  };
  return {
      {.name = "conv_transpose2d",
       .help =
           "y = the gradient of conv2d applied to x, + b; x (N,C,H,W), w (C,O/groups,R,S), b (O) "
           "or absent, y (N,O,P,Q)",
       .source = "torch.nn.functional.conv_transpose2d; CUDA autocast: lower_precision_fp",
       .cast_class = CastClass::kLowPrecision,
       .min_inputs = 2,
       .max_inputs = 3,
       .attributes = attributes,
       .infer = Rules::infer,
       .vjp = Rules::vjp,
       .run = run,
       .foreign_names = {.mxnet = "Deconvolution"},
       .sums = {.of_products = true, .products = forward_products},
       .formats = {.rounds_inside = RoundsInside::kBias},
       .meaning = {.first_values = FirstValues::kFanIn}},
      {.name = "conv_transpose2d_backward_input",
       .help = "dx of conv_transpose2d, a convolution of dy; operands w, dy; sums over (o, r, s)",
       .source = "chain rule of conv_transpose2d",
       .cast_class = CastClass::kLowPrecision,
       .min_inputs = 2,
       .max_inputs = 2,
       .attributes = with("input_shape"),
       .infer = Rules::infer_backward_input,
       .run = run_backward_input,
       .sums = {.of_products = true, .products = backward_input_products}},
      {.name = "conv_transpose2d_backward_weight",
       .help = "dw of conv_transpose2d; operands x, dy; sums over (n, h, w)",
       .source = "chain rule of conv_transpose2d",
       .cast_class = CastClass::kLowPrecision,
       .min_inputs = 2,
       .max_inputs = 2,
       .attributes = with("weight_shape"),
       .infer = Rules::infer_backward_weight,
       .run = run_backward_weight,
       .sums = {.of_products = true, .products = backward_weight_products}},
  };
}

}  // namespace lockstep
