// The inputs of each output of a convolution, as planes that vectors can run along.
// For every tap column s there is a copy of the image. In it, pixels that neighbouring outputs read
// through s are neighbours, zeros of the padding included; rows that successive output rows read
// through a tap row are neighbours, too. A vector of outputs may extend over several rows. Through
// any tap, it reads the vector at a fixed distance:
//
//   output (p, q), tap (c, r, s):   planes[offset(c, r, s) + p * width + q]
//
//   image row         a b c d         width 4, three taps, padding 1
//   copies for s      0 a b c    a b c d    b c d 0
//
// Three taps with stride, dilation and padding 1 need one copy: a pixel's neighbours are next to
// it. The end of a row is followed by the next row, so the tile replaces those values by zero.
//
// Also the backward direction, where the image is dy with zeros between its pixels.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "emulation/kernels/args/conv_args.h"

namespace lockstep {

// One axis: output i reads through tap t the position i * stride + t * dilation - pad of an image
// of `size` pixels with up - 1 zeros between neighbours.
struct PlaneAxis {
  int64_t outputs, taps, stride, dilation, pad, up, size;

  // The pixel there, or -1 if there is a zero.
  int64_t pixel(int64_t position) const {
    if (position < 0) return -1;
    if (up != 1) {
      if (position % up != 0) return -1;
      position /= up;
    }
    return position < size ? position : -1;
  }
  // Tap t of output i is in row i + rows_up(t) of the rows with this remainder.
  int64_t remainder(int64_t tap) const { return tap * dilation % stride; }
  int64_t rows_up(int64_t tap) const { return tap * dilation / stride; }
};

// The taps of a row that one copy of the image serves.
constexpr int64_t kOneCopyTaps = 3;

struct PlaneShape {
  int64_t channels;
  PlaneAxis h, w;

  // The remainders of h that some tap has.
  int64_t classes() const { return std::min(h.stride, (h.taps - 1) * h.dilation + 1); }
  int64_t plane_rows(int64_t out_rows) const { return out_rows + h.rows_up(h.taps - 1); }
  int64_t plane_size(int64_t out_rows) const { return plane_rows(out_rows) * w.outputs; }
  // A plane's rows are as long as the image's and follow each other as there.
  bool keeps_rows() const {
    return h.stride == 1 && h.up == 1 && w.stride == 1 && w.up == 1 && w.outputs == w.size;
  }
  bool has_one_copy() const {
    return keeps_rows() && w.taps == kOneCopyTaps && w.dilation == 1 && w.pad == 1;
  }
  int64_t copies() const { return has_one_copy() ? 1 : w.taps; }
  int64_t size(int64_t out_rows) const {
    return channels * classes() * copies() * plane_size(out_rows);
  }
  // The offsets of the taps (c, r, s) for a piece of this many output rows: c ascending; r and s
  // ascending too, or descending if reversed. One copy is also read one element before and one
  // element after its planes.
  std::vector<int64_t> offsets(int64_t out_rows, bool reversed) const {
    std::vector<int64_t> all;
    all.reserve(static_cast<size_t>(channels * h.taps * w.taps));
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t i = 0; i < h.taps; ++i) {
        const int64_t r = reversed ? h.taps - 1 - i : i;
        for (int64_t j = 0; j < w.taps; ++j) {
          const int64_t s = reversed ? w.taps - 1 - j : j;
          const int64_t first = (c * classes() + h.remainder(r)) * copies() * plane_size(out_rows);
          const int64_t column = has_one_copy() ? s - w.pad : s * plane_size(out_rows);
          all.push_back(first + column + h.rows_up(r) * w.outputs);
        }
      }
    }
    return all;
  }
};

inline PlaneShape forward_planes(const ConvShape& s) {
  return {s.in_channels,
          {s.out_height, s.kernel_height, s.stride_h, s.dilation_h, s.pad_h, 1, s.in_height},
          {s.out_width, s.kernel_width, s.stride_w, s.dilation_w, s.pad_w, 1, s.in_width}};
}
// A convolution of dy with the taps in reverse: tap r of the backward direction is taps - 1 - r
// here.
inline PlaneShape backward_planes(const ConvShape& s) {
  const int64_t reach_h = (s.kernel_height - 1) * s.dilation_h;
  const int64_t reach_w = (s.kernel_width - 1) * s.dilation_w;
  return {
      s.out_channels,
      {s.in_height, s.kernel_height, 1, s.dilation_h, reach_h - s.pad_h, s.stride_h, s.out_height},
      {s.in_width, s.kernel_width, 1, s.dilation_w, reach_w - s.pad_w, s.stride_w, s.out_width}};
}

// The pixels at remainder, remainder + stride, ... of an axis of the input, and the taps through
// which outputs read them: first, first + step, ...
struct TapSet {
  int64_t first, step, count;
  PlaneAxis axis;  // of the outputs as an image, taps in reverse; outputs: the pixels
};
// One set for every remainder. `axis`: outputs are input pixels here, size is the number of
// outputs.
//   through tap t = first + k step, pixel remainder + i stride is read by the output
//   (remainder + i stride + pad - t dilation) / stride = i + base - k apart
inline std::vector<TapSet> tap_sets(const PlaneAxis& axis) {
  std::vector<TapSet> sets;
  const int64_t step = axis.stride / std::gcd(axis.stride, axis.dilation);
  const int64_t apart = step * axis.dilation / axis.stride;
  for (int64_t remainder = 0; remainder < axis.stride; ++remainder) {
    int64_t first = 0;
    while (first < axis.taps && (remainder + axis.pad - first * axis.dilation) % axis.stride != 0) {
      ++first;
    }
    TapSet set{first, step, 0, {}};
    if (first < axis.taps) set.count = (axis.taps - first + step - 1) / step;
    const int64_t base = (remainder + axis.pad - first * axis.dilation) / axis.stride;
    const int64_t pixels =
        remainder < axis.outputs ? (axis.outputs - remainder + axis.stride - 1) / axis.stride : 0;
    set.axis = {pixels, set.count, 1, apart, (set.count - 1) * apart - base, 1, axis.size};
    sets.push_back(set);
  }
  return sets;
}

}  // namespace lockstep
