// Max pooling over (N,C,H,W) images: plain loops.
#pragma once

#include <algorithm>
#include <cstdint>

#include "emulation/kernels/args/pool_args.h"

namespace lockstep {

// The index (h * W + w) of the first maximum, or of the first NaN, in window (p, q) of a plane.
template <typename T>
int32_t window_argmax(const PoolShape& s, const T* plane, int64_t p, int64_t q) {
  // The first tap, of those `dilation` apart, that is not in the padding before the image.
  const auto inside = [](int64_t first, int64_t dilation) {
    return first >= 0 ? first : first + (-first + dilation - 1) / dilation * dilation;
  };
  const int64_t h0 = p * s.stride_h - s.pad_h, w0 = q * s.stride_w - s.pad_w;
  const int64_t h_begin = inside(h0, s.dilation_h), w_begin = inside(w0, s.dilation_w);
  const int64_t h_end = std::min(h0 + (s.kernel_h - 1) * s.dilation_h + 1, s.in_height);
  const int64_t w_end = std::min(w0 + (s.kernel_w - 1) * s.dilation_w + 1, s.in_width);
  int64_t best = h_begin * s.in_width + w_begin;
  T best_value = plane[best];
  for (int64_t h = h_begin; h < h_end; h += s.dilation_h) {
    const int64_t row_end = h * s.in_width + w_end;
    for (int64_t i = h * s.in_width + w_begin; i < row_end; i += s.dilation_w) {
      // Larger, or a NaN, unless a NaN was found before. Uses single bits and selections: branches
      // would be mispredicted at every other window.
      const bool wins = !(plane[i] <= best_value) & (best_value == best_value);
      best = wins ? i : best;
      best_value = wins ? plane[i] : best_value;
    }
  }
  return static_cast<int32_t>(best);
}

// y (N,C,P,Q), argmax (N,C,P,Q): h * W + w of the chosen element. Requires: every window holds at
// least one element that is not padding.
template <typename T>
void scalar_max_pool2d(const PoolShape& shape, const T* x, T* y, int32_t* argmax);
// dx (N,C,H,W): sums of dy in the order of the windows, in T.
template <typename T>
void scalar_max_pool2d_backward(const PoolShape& shape, const T* dy, const int32_t* argmax, T* dx);

}  // namespace lockstep
