// The arguments of a convolution.
#pragma once

#include <cstdint>

#include "emulation/accumulator/accumulator.h"

namespace lockstep {

// 2-d convolution, cross-correlation as in the field. Zero padding on both sides.
struct ConvShape {
  int64_t batch, in_channels, in_height, in_width;
  int64_t out_channels, kernel_height, kernel_width;
  int64_t out_height, out_width;
  int64_t stride_h = 1, stride_w = 1, pad_h = 0, pad_w = 0, dilation_h = 1, dilation_w = 1;
};

// y (N,O,P,Q), x (N,C,H,W), w (O,C,R,S). The sum of each output runs over, ascending:
//   forward          y:  (c, r, s)
//   backward_input   dx: (o, r, s), over the (o, r, s) that touch the pixel, others adding zero
//   backward_weight  dw: (n, p, q)
template <typename T>
struct ConvArgs {
  ConvShape shape;
  const T* x = nullptr;   // forward, backward_weight
  const T* w = nullptr;   // forward, backward_input
  const T* dy = nullptr;  // backward_input, backward_weight
  T* out = nullptr;       // y, dx or dw
  const Accumulator* accumulator = nullptr;
  const Format *x_format = nullptr, *w_format = nullptr, *dy_format = nullptr;  // as GemmArgs
  uint8_t* events = nullptr;  // as GemmArgs, shape of out
};

enum class ConvPass : uint8_t { kForward, kBackwardInput, kBackwardWeight };

}  // namespace lockstep
