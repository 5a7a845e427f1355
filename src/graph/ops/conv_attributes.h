// Shared by conv2d and conv_transpose2d: attributes, matrix products, shape rules and gradients.
// For ops/*.cc alone.
#pragma once

#include <cstdint>
#include <vector>

#include "src/graph/ops/op_helpers.h"
#include "src/graph/ops/sum_samples.h"

namespace lockstep {

struct ConvAttributes {
  std::vector<int64_t> stride, dilation;  // (height, width)
  std::vector<int64_t> padding;           // (top, bottom, left, right)
  int64_t groups;

  void set(ConvShape& s) const {
    s.stride_h = stride[0], s.stride_w = stride[1];
    s.pad_h = padding[0], s.pad_w = padding[2];
    s.dilation_h = dilation[0], s.dilation_w = dilation[1];
  }
};

// Throws: InputError for the wrong number of numbers, or one out of range.
inline ConvAttributes conv_attributes(const Node& node) {
  ConvAttributes a{pair_attribute(node, "stride", {1, 1}), pair_attribute(node, "dilation", {1, 1}),
                   ints_attribute(node, "padding", {0}), int_attribute(node, "groups", 1)};
  std::vector<int64_t>& pad = a.padding;
  const std::string given = to_string(pad);
  if (pad.size() == 1) pad = {pad[0], pad[0], pad[0], pad[0]};
  if (pad.size() == 2) pad = {pad[0], pad[0], pad[1], pad[1]};
  require(pad.size() == 4, node,
          "attribute 'padding' is " + given + ", must have 1, 2 or 4 numbers",
          "one for all sides; rows, columns; or top, bottom, left, right");
  for (const int64_t side : pad) {
    require(side >= 0, node, "attribute 'padding' is " + given + ", must not be negative");
  }
  require_positive(node, "stride", a.stride);
  require_positive(node, "dilation", a.dilation);
  require(a.groups >= 1, node,
          "attribute 'groups' is " + std::to_string(a.groups) + ", must be at least 1");
  return a;
}

// The im2col form of a convolution of small (N,c,p,q) from big (N,C,H,W) images with weights
// (c,C/g,R,S): per group, small = (N p q, C/g R S) x (C/g R S, c/g). The gradients of both operands
// are its other two products; zeros between strided pixels count. Channels: of the input, and of
// the output; dw has those of to_small.
struct ConvProducts {
  ProductShape to_small, to_big, to_weight;
};
inline ConvProducts conv_products(const Node& node, const Shape& big, const Shape& small,
                                  const Shape& weight) {
  const int64_t groups = int_attribute(node, "groups", 1);
  const int64_t taps = weight[2] * weight[3];
  const int64_t big_pixels = big[0] * big[2] * big[3], pixels = small[0] * small[2] * small[3];
  const int64_t big_channels = big[1] / groups, channels = small[1] / groups;
  return {{groups, pixels, channels, big_channels * taps, big_channels, channels},
          {groups, big_pixels, big_channels, channels * taps, channels, big_channels},
          {groups, channels, big_channels * taps, pixels, big_channels, channels}};
}

struct ConvKind {
  std::string_view backward_input, backward_weight;  // op names
  // Extents of y. Throws: InputError for an x, a w or an attribute that does not fit.
  Shape (*output)(const Node& node, const Shape& x, const Shape& w);
};

// Shape rules and gradients of the ops of `kind`, for their OpDefs.
template <const ConvKind& kind>
struct ConvRules {
  static std::vector<TensorType> infer(const Node& node, std::span<const TensorType> inputs) {
    require_floats(node, inputs);
    const Shape y = kind.output(node, inputs[0].shape, inputs[1].shape);
    if (inputs.size() == 3) require_shape(node, inputs, 2, {y[1]}, "(out_channels)");
    return {{y}};
  }
  static std::vector<TensorType> infer_backward_input(const Node& node,
                                                      std::span<const TensorType> inputs) {
    require_floats(node, inputs);
    const Shape x = ints_attribute(node, "input_shape", {});
    require_shape(node, inputs, 1, kind.output(node, x, inputs[0].shape), "(N,O,P,Q)");
    return {{x}};
  }
  static std::vector<TensorType> infer_backward_weight(const Node& node,
                                                       std::span<const TensorType> inputs) {
    require_floats(node, inputs);
    const Shape w = ints_attribute(node, "weight_shape", {});
    require_shape(node, inputs, 1, kind.output(node, inputs[0].shape, w), "(N,O,P,Q)");
    return {{w}};
  }
  static void vjp(GradientBuilder& builder, const Node& node) {
    const std::string dy = builder.output_gradient(node);
    if (builder.needs_gradient(node, 0)) {
      builder.add_node(node, kind.backward_input, {node.inputs[1], dy},
                       with_operand_shape(builder, node, "input_shape", 0), {0});
    }
    if (builder.needs_gradient(node, 1)) {
      builder.add_node(node, kind.backward_weight, {node.inputs[0], dy},
                       with_operand_shape(builder, node, "weight_shape", 1), {1});
    }
    if (node.inputs.size() == 3 && builder.needs_gradient(node, 2)) {
      builder.add_node(node, "conv2d_backward_bias", {dy}, {}, {2});
    }
  }
};

// Runs `pass` on `conv`, which has its shape, factors and their formats.
template <typename T>
void run_pass(const OpCall& call, ConvPass pass, ConvArgs<T> conv) {
  conv.out = output<T>(call, 0);
  conv.accumulator = &call.gemm_accumulator, conv.events = call.events;
  run_conv(call, pass, conv, conv_attributes(call.node).groups);
}

// Adds the bias, operand 2, if there is one; to the rounded sums, if the node rounds inside.
template <typename T>
void add_bias(const OpCall& call) {
  if (call.inputs.size() < 3) return;
  if (call.sums_ready) call.sums_ready();
  const Shape& shape = output_shape(call, 0);
  const Kernels<T>& kernels = call.kernels.of<T>();
  T* y = output<T>(call, 0);
  if (const Format* format = inner_format(call)) {
    kernels.quantize(y, y, element_count(shape), {.format = format}, nullptr);
  }
  kernels.add_channels(y, input<T>(call, 2), shape[0], shape[1], shape[2] * shape[3]);
}

}  // namespace lockstep
