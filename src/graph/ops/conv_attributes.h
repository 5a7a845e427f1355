// The attributes of convolutions, and their matrix products. For ops/*.cc alone.
#pragma once

#include <cstdint>
#include <vector>

#include "src/graph/ops/op_helpers.h"

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
  require(a.stride[0] >= 1 && a.stride[1] >= 1, node,
          "attribute 'stride' is " + to_string(a.stride) + ", must be at least 1");
  require(a.dilation[0] >= 1 && a.dilation[1] >= 1, node,
          "attribute 'dilation' is " + to_string(a.dilation) + ", must be at least 1");
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

}  // namespace lockstep
