// Convolution and its two gradients by direct loops: the definition. Positions in the padding count
// as 0, so that an infinite weight over the padding gives NaN, as 0 * inf does.
#pragma once

#include "emulation/kernels/args/conv_args.h"

namespace lockstep {

template <typename T>
void scalar_conv2d_forward(const ConvArgs<T>& args);
template <typename T>
void scalar_conv2d_backward_input(const ConvArgs<T>& args);
template <typename T>
void scalar_conv2d_backward_weight(const ConvArgs<T>& args);

// The index of the input pixel that output position `out` reads through kernel tap `tap`, or -1 if
// it is in the padding.
inline int64_t input_position(int64_t out, int64_t tap, int64_t stride, int64_t pad,
                              int64_t dilation, int64_t size) {
  const int64_t in = out * stride - pad + tap * dilation;
  return in >= 0 && in < size ? in : -1;
}

// The inverse: the output position whose tap `tap` reads input pixel `in`, or -1.
inline int64_t output_position(int64_t in, int64_t tap, int64_t stride, int64_t pad,
                               int64_t dilation, int64_t size) {
  const int64_t scaled = in + pad - tap * dilation;
  if (scaled < 0) return -1;
  if (stride == 1) return scaled < size ? scaled : -1;  // the common case without a division
  if (scaled % stride != 0) return -1;
  return scaled / stride < size ? scaled / stride : -1;
}

}  // namespace lockstep
