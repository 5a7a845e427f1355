// The attributes of pooling over fixed windows: kernel, stride (the kernel's if absent), padding,
// dilation, ceil_mode. For ops/*.cc alone.
#pragma once

#include <algorithm>

#include "src/graph/ops/op_helpers.h"

namespace lockstep {

// floor((in + 2 pad - dilation (kernel - 1) - 1) / stride) + 1; with ceil_mode rounded up, unless
// the last window would then begin beyond the image and its padding on the left.
inline int64_t pool_extent(int64_t in, int64_t kernel, int64_t stride, int64_t pad,
                           int64_t dilation, bool ceil_mode) {
  const int64_t room = in + 2 * pad - dilation * (kernel - 1) - 1;
  if (room < 0) return 0;
  const int64_t out = (room + (ceil_mode ? stride - 1 : 0)) / stride + 1;
  return ceil_mode && (out - 1) * stride >= in + pad ? out - 1 : out;
}

// Throws: InputError for an image or attributes that do not fit.
inline PoolShape pool_shape(const Node& node, const Shape& x) {
  require_image(node, x);
  const std::vector<int64_t> kernel = pair_attribute(node, "kernel", {});
  std::vector<int64_t> stride = pair_attribute(node, "stride", kernel);
  const std::vector<int64_t> pad = pair_attribute(node, "padding", {0, 0});
  const std::vector<int64_t> dilation = pair_attribute(node, "dilation", {1, 1});
  const bool ceil_mode = bool_attribute(node, "ceil_mode", false);
  require_positive(node, "kernel", kernel);
  require_positive(node, "stride", stride);
  require_positive(node, "dilation", dilation);
  int64_t out[2];
  for (size_t d = 0; d < 2; ++d) {
    const int64_t in = x[d + 2], reach = dilation[d] * (kernel[d] - 1) + 1;
    // A larger kernel covers the same pixels as one at this limit, but costs more.
    constexpr int64_t kAlwaysAllowed = 64, kPerPixel = 4;
    require(kernel[d] <= std::max(kAlwaysAllowed, kPerPixel * in), node,
            "attribute 'kernel' is " + to_string(kernel) + ", must be at most " +
                std::to_string(kAlwaysAllowed) + " or " + std::to_string(kPerPixel) +
                " times the image " + to_string(x));
    // A wider padding would leave windows without any value.
    require(pad[d] >= 0 && 2 * pad[d] <= reach, node,
            "attribute 'padding' is " + to_string(pad) +
                ", must be between 0 and half the kernel " + to_string(kernel) +
                " (with dilation: half its dilated extent)");
    out[d] = pool_extent(in, kernel[d], stride[d], pad[d], dilation[d], ceil_mode);
    require(out[d] >= 1, node,
            "the kernel " + to_string(kernel) + " with dilation " + to_string(dilation) +
                " does not fit into the image " + to_string(x) + " padded by " + to_string(pad));
    for (int64_t p = 0; p < out[d]; ++p) {
      int64_t first = p * stride[d] - pad[d];
      const int64_t end = std::min(first + reach, in);
      if (first < 0) first += (dilation[d] - 1 - first) / dilation[d] * dilation[d];
      require(first < end, node,
              "window " + std::to_string(p) + " of dimension " + std::to_string(d + 2) +
                  " contains only padding (image " + to_string(x) + ", kernel " +
                  to_string(kernel) + ", dilation " + to_string(dilation) + ", padding " +
                  to_string(pad) + ")");
    }
  }
  PoolShape s{};
  s.batch = x[0], s.channels = x[1], s.in_height = x[2], s.in_width = x[3];
  s.out_height = out[0], s.out_width = out[1];
  s.kernel_h = kernel[0], s.kernel_w = kernel[1], s.stride_h = stride[0], s.stride_w = stride[1];
  s.pad_h = pad[0], s.pad_w = pad[1], s.dilation_h = dilation[0], s.dilation_w = dilation[1];
  return s;
}

inline Shape output_extents(const PoolShape& s) {
  return {s.batch, s.channels, s.out_height, s.out_width};
}

}  // namespace lockstep
