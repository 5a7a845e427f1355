// The inputs of each output of a convolution, as rows of a matrix.
// Row (c, r, s) of the columns of an image holds, for every output pixel in order, the input pixel
// read through tap (r, s) of channel c, or 0 in the padding.
#pragma once

#include <algorithm>
#include <cstdint>

#include "emulation/kernels/kernel_set.h"
#include "emulation/kernels/scalar/convolution/conv2d.h"

namespace lockstep {

// The first and one-past-last output position whose tap is inside [0, size).
struct InsideRange {
  int64_t begin, end;
};
inline InsideRange inside_range(int64_t outputs, int64_t tap, int64_t stride, int64_t pad,
                                int64_t dilation, int64_t size) {
  const int64_t first = tap * dilation - pad;  // input position of output 0
  const int64_t begin = first >= 0 ? 0 : (-first + stride - 1) / stride;
  const int64_t end = size - first <= 0 ? 0 : (size - first + stride - 1) / stride;
  return {std::min(begin, outputs), std::clamp(end, std::min(begin, outputs), outputs)};
}

// Row `row` = (c, r, s) for output rows [p_begin, p_end) of the image x (C,H,W). Consecutive pixels
// go to places `step` apart. Plain loops: the runs are short, and a call per run would cost more.
template <typename T>
void forward_column_row(const ConvShape& s, const T* x, int64_t row, int64_t p_begin, int64_t p_end,
                        T* __restrict out, int64_t step = 1) {
  const int64_t taps = s.kernel_height * s.kernel_width;
  const int64_t c = row / taps, r = row % taps / s.kernel_width, t = row % s.kernel_width;
  const InsideRange inside =
      inside_range(s.out_width, t, s.stride_w, s.pad_w, s.dilation_w, s.in_width);
  for (int64_t p = p_begin; p < p_end; ++p, out += s.out_width * step) {
    const int64_t h = input_position(p, r, s.stride_h, s.pad_h, s.dilation_h, s.in_height);
    if (h < 0) {
      for (int64_t q = 0; q < s.out_width; ++q) out[q * step] = T(0);
      continue;
    }
    const T* in = x + (c * s.in_height + h) * s.in_width + t * s.dilation_w - s.pad_w;
    for (int64_t q = 0; q < inside.begin; ++q) out[q * step] = T(0);
    if (s.stride_w == 1 && step == 1) {
      for (int64_t q = inside.begin; q < inside.end; ++q) out[q] = in[q];
    } else {
      for (int64_t q = inside.begin; q < inside.end; ++q) out[q * step] = in[q * s.stride_w];
    }
    for (int64_t q = inside.end; q < s.out_width; ++q) out[q * step] = T(0);
  }
}

// Row `row` = (o, r, s) for input rows [h_begin, h_end): the element of dy (O,P,Q) whose tap (r, s)
// reads the input pixel, or 0 if there is none.
template <typename T>
void backward_column_row(const ConvShape& s, const T* dy, int64_t row, int64_t h_begin,
                         int64_t h_end, T* __restrict out) {
  const int64_t taps = s.kernel_height * s.kernel_width;
  const int64_t o = row / taps, r = row % taps / s.kernel_width, t = row % s.kernel_width;
  const InsideRange inside =
      inside_range(s.out_width, t, s.stride_w, s.pad_w, s.dilation_w, s.in_width);
  const int64_t shift = t * s.dilation_w - s.pad_w;  // output 0 reads the input at this place
  const int64_t first = inside.begin * s.stride_w + shift;
  const int64_t last =
      inside.end > inside.begin ? (inside.end - 1) * s.stride_w + shift : first - 1;
  for (int64_t h = h_begin; h < h_end; ++h, out += s.in_width) {
    const int64_t p = output_position(h, r, s.stride_h, s.pad_h, s.dilation_h, s.out_height);
    if (p < 0 || last < first) {
      for (int64_t w = 0; w < s.in_width; ++w) out[w] = T(0);
      continue;
    }
    const T* in = dy + (o * s.out_height + p) * s.out_width;
    if (s.stride_w == 1) {
      for (int64_t w = 0; w < first; ++w) out[w] = T(0);
      for (int64_t w = first; w <= last; ++w) out[w] = in[w - shift];
      for (int64_t w = last + 1; w < s.in_width; ++w) out[w] = T(0);
    } else {
      for (int64_t w = 0; w < s.in_width; ++w) out[w] = T(0);
      for (int64_t q = inside.begin; q < inside.end; ++q) out[q * s.stride_w + shift] = in[q];
    }
  }
}

}  // namespace lockstep
