// The input pixels that each output pixel of a resized image reads.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep {

// The two input places on either side of an output place along an axis, and their weights.
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
// place = floor(i / scale), at most in - 1; in float for every element type, so that all lanes read
// the same pixels.
std::vector<int64_t> nearest_places(int64_t in, int64_t out, double scale);

struct UpsampleShape {
  int64_t planes, in_height, in_width;
};

}  // namespace lockstep
