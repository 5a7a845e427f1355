// Sample positions along an axis.
#include "emulation/kernels/args/upsample_args.h"

#include <algorithm>
#include <cmath>

namespace lockstep {

template <typename T>
std::vector<AxisSample<T>> bilinear_samples(int64_t in, int64_t out, double scale,
                                            bool align_corners) {
  T step = 0;  // input places per output place
  if (align_corners) {
    if (out > 1) step = static_cast<T>(in - 1) / static_cast<T>(out - 1);
  } else {
    step = scale > 0 ? static_cast<T>(1.0 / scale) : static_cast<T>(in) / static_cast<T>(out);
  }
  constexpr T kHalf = T(0.5);
  std::vector<AxisSample<T>> samples;
  for (int64_t i = 0; i < out; ++i) {
    const T index = static_cast<T>(i);
    const T place = align_corners ? step * index : std::max(step * (index + kHalf) - kHalf, T(0));
    const int64_t low = std::min(static_cast<int64_t>(place), in - 1);
    const T high_weight = std::min(std::max(place - static_cast<T>(low), T(0)), T(1));
    samples.push_back({low, std::min(low + 1, in - 1), T(1) - high_weight, high_weight});
  }
  return samples;
}

std::vector<int64_t> nearest_places(int64_t in, int64_t out, double scale) {
  const float step = scale > 0 ? static_cast<float>(1.0 / scale)
                               : static_cast<float>(in) / static_cast<float>(out);
  std::vector<int64_t> places;
  for (int64_t i = 0; i < out; ++i) {
    const float place = std::floor(static_cast<float>(i) * step);
    places.push_back(std::min(static_cast<int64_t>(place), in - 1));
  }
  return places;
}

template std::vector<AxisSample<float>> bilinear_samples(int64_t, int64_t, double, bool);
template std::vector<AxisSample<double>> bilinear_samples(int64_t, int64_t, double, bool);

}  // namespace lockstep
