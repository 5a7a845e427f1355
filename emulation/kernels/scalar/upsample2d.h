// Images at another size: every output pixel takes one input pixel, or a mean of four.
//   nearest    y = x[row, column]
//   bilinear   y = r0 (c0 x00 + c1 x01) + r1 (c0 x10 + c1 x11)
// Gradients are chains from +0 over the output pixels in scan order
// (emulation/kernels/scalar/chain_add.h), of one output pixel's four terms in the order x00, x01,
// x10, x11.
#pragma once

#include <cstdint>
#include <vector>

#include "emulation/accumulator/accumulator.h"

namespace lockstep {

// The two input places along an axis that an output place lies between, and their weights.
template <typename T>
struct AxisSample {
  int64_t low, high;
  T low_weight, high_weight;
};
// Along an axis of `in` places, `out` times. scale: of the output to the input, 0 where only the
// sizes are known. Computed in T, as torch does.
//   align_corners   place = i (in - 1) / (out - 1)
//   otherwise       place = (i + 1/2) / scale - 1/2, at least 0
template <typename T>
std::vector<AxisSample<T>> bilinear_samples(int64_t in, int64_t out, double scale,
                                            bool align_corners);
// place = floor(i / scale), at most in - 1; in float for every element type, so that all lanes take
// the same pixels.
std::vector<int64_t> nearest_places(int64_t in, int64_t out, double scale);

struct UpsampleShape {
  int64_t planes, in_height, in_width;
};

template <typename T>
void upsample_nearest2d(const UpsampleShape& shape, const std::vector<int64_t>& rows,
                        const std::vector<int64_t>& columns, const T* x, T* y);
template <typename T>
void upsample_nearest2d_backward(const UpsampleShape& shape, const std::vector<int64_t>& rows,
                                 const std::vector<int64_t>& columns, const T* dy, T* dx,
                                 const Accumulator& accumulator);
template <typename T>
void upsample_bilinear2d(const UpsampleShape& shape, const std::vector<AxisSample<T>>& rows,
                         const std::vector<AxisSample<T>>& columns, const T* x, T* y);
template <typename T>
void upsample_bilinear2d_backward(const UpsampleShape& shape,
                                  const std::vector<AxisSample<T>>& rows,
                                  const std::vector<AxisSample<T>>& columns, const T* dy, T* dx,
                                  const Accumulator& accumulator);

}  // namespace lockstep
