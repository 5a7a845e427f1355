// Which numbers does each output of a convolution see, as planes that vectors can run along?
// For every tap column s there is a copy of the image in which the pixels that neighbouring outputs
// see through s are neighbours, zeros of the padding included; rows that one output row after
// another sees through a tap row are neighbours, too. A vector of outputs, which may reach over
// several rows, then sees through any tap the vector at a fixed distance:
//
//   output (p, q), tap (c, r, s):   planes[offset(c, r, s) + p * width + q]
//
//   image row         a b c d         width 4, three taps, padding 1
//   copies for s      0 a b c    a b c d    b c d 0
//
// Also the backward direction, where the image is dy with zeros between its pixels.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "emulation/kernel_set.h"

namespace lockstep {

// One axis: output i sees through tap t the position i * stride + t * dilation - pad of an image of
// `size` pixels with up - 1 zeros between neighbours.
struct PlaneAxis {
  int64_t outputs, taps, stride, dilation, pad, up, size;

  // The pixel there, or -1 where there is a zero.
  int64_t pixel(int64_t position) const {
    if (position < 0) return -1;
    if (up != 1) {
      if (position % up != 0) return -1;
      position /= up;
    }
    return position < size ? position : -1;
  }
  // Tap t of output i lies in row i + rows_up(t) of the rows with this remainder.
  int64_t remainder(int64_t tap) const { return tap * dilation % stride; }
  int64_t rows_up(int64_t tap) const { return tap * dilation / stride; }
};

struct PlaneShape {
  int64_t channels;
  PlaneAxis h, w;

  // The remainders of h that some tap has.
  int64_t classes() const { return std::min(h.stride, (h.taps - 1) * h.dilation + 1); }
  int64_t plane_rows(int64_t out_rows) const { return out_rows + h.rows_up(h.taps - 1); }
  int64_t plane_size(int64_t out_rows) const { return plane_rows(out_rows) * w.outputs; }
  int64_t size(int64_t out_rows) const {
    return channels * classes() * w.taps * plane_size(out_rows);
  }
  // Of the taps (c, r, s), ascending, for a piece of so many output rows.
  std::vector<int64_t> offsets(int64_t out_rows) const {
    std::vector<int64_t> all;
    all.reserve(static_cast<size_t>(channels * h.taps * w.taps));
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t r = 0; r < h.taps; ++r) {
        for (int64_t s = 0; s < w.taps; ++s) {
          const int64_t plane = (c * classes() + h.remainder(r)) * w.taps + s;
          all.push_back(plane * plane_size(out_rows) + h.rows_up(r) * w.outputs);
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

// One row of a plane: what outputs 0, 1, ... see through tap s of the image row `in`.
template <typename T>
void fill_plane_row(const PlaneAxis& w, const T* in, int64_t s, T* __restrict out) {
  const int64_t first = s * w.dilation - w.pad;
  if (w.up == 1) {
    const int64_t begin = first >= 0 ? 0 : (-first + w.stride - 1) / w.stride;
    const int64_t left = std::min(begin, w.outputs);
    const int64_t room = w.size - first;
    const int64_t end =
        std::clamp(room <= 0 ? 0 : (room + w.stride - 1) / w.stride, left, w.outputs);
    for (int64_t q = 0; q < left; ++q) out[q] = T(0);
    if (w.stride == 1) {
      for (int64_t q = left; q < end; ++q) out[q] = in[q + first];
    } else {
      for (int64_t q = left; q < end; ++q) out[q] = in[q * w.stride + first];
    }
    for (int64_t q = end; q < w.outputs; ++q) out[q] = T(0);
    return;
  }
  for (int64_t q = 0; q < w.outputs; ++q) {
    const int64_t pixel = w.pixel(q * w.stride + first);
    out[q] = pixel < 0 ? T(0) : in[pixel];
  }
}

// The planes of one image (channels, h.size, w.size) for output rows [begin, end).
template <typename T>
void fill_planes(const PlaneShape& shape, const T* image, int64_t begin, int64_t end, T* out) {
  const PlaneAxis &h = shape.h, &w = shape.w;
  const int64_t rows = shape.plane_rows(end - begin), width = w.outputs;
  // Rows as long as the image's: a shifted copy of all of them at once, then the zeros at the ends.
  const bool in_one = w.stride == 1 && w.up == 1 && h.stride == 1 && h.up == 1 && width == w.size;
  for (int64_t c = 0; c < shape.channels; ++c) {
    const T* plane = image + c * h.size * w.size;
    for (int64_t remainder = 0; remainder < shape.classes(); ++remainder) {
      for (int64_t s = 0; s < w.taps; ++s, out += rows * width) {
        if (in_one) {
          const int64_t above = std::clamp<int64_t>(h.pad - begin, 0, rows);
          const int64_t below = std::clamp<int64_t>(h.size + h.pad - begin, above, rows);
          const int64_t shift = std::clamp<int64_t>(s * w.dilation - w.pad, -width, width);
          std::fill(out, out + above * width, T(0));
          std::fill(out + below * width, out + rows * width, T(0));
          if (above == below) continue;
          const T* in = plane + (begin + above - h.pad) * width;
          T* to = out + above * width;
          const int64_t count = (below - above) * width;
          const int64_t left = std::max<int64_t>(0, -shift), right = std::max<int64_t>(0, shift);
          std::copy(in + right, in + count - left, to + left);
          for (int64_t row = 0; row < count; row += width) {
            for (int64_t q = 0; q < left; ++q) to[row + q] = T(0);
            for (int64_t q = width - right; q < width; ++q) to[row + q] = T(0);
          }
          continue;
        }
        for (int64_t row = 0; row < rows; ++row) {
          const int64_t pixel = h.pixel((begin + row) * h.stride + remainder - h.pad);
          if (pixel < 0) {
            std::fill(out + row * width, out + (row + 1) * width, T(0));
          } else {
            fill_plane_row(w, plane + pixel * w.size, s, out + row * width);
          }
        }
      }
    }
  }
}

}  // namespace lockstep
