// Direct loops: each output's chain in the order emulation/kernel_set.h declares.
#include "emulation/scalar/conv2d.h"

#include "emulation/scalar/chain.h"
#include "src/core/parallel.h"

namespace lockstep {
namespace {

// x[n, c, h, w], 0 where h or w is -1.
template <typename T>
T at(const T* x, int64_t plane, int64_t h, int64_t w, int64_t height, int64_t width) {
  return h < 0 || w < 0 ? T(0) : x[(plane * height + h) * width + w];
}

template <typename T>
uint8_t* events_at(const ConvArgs<T>& a, int64_t index) {
  return a.events != nullptr ? a.events + index : nullptr;
}

}  // namespace

template <typename T>
void scalar_conv2d_forward(const ConvArgs<T>& a) {
  const ConvShape& s = a.shape;
  const ChainRule<T> chain(*a.accumulator);
  const auto output = [&](int64_t n, int64_t o, int64_t p, int64_t q, int64_t index) {
    double acc = 0;
    for (int64_t c = 0; c < s.in_channels; ++c) {
      for (int64_t r = 0; r < s.kernel_height; ++r) {
        const int64_t h = input_position(p, r, s.stride_h, s.pad_h, s.dilation_h, s.in_height);
        for (int64_t t = 0; t < s.kernel_width; ++t) {
          const int64_t w = input_position(q, t, s.stride_w, s.pad_w, s.dilation_w, s.in_width);
          const T weight =
              a.w[((o * s.in_channels + c) * s.kernel_height + r) * s.kernel_width + t];
          const T x = at(a.x, n * s.in_channels + c, h, w, s.in_height, s.in_width);
          acc = chain.step(acc, weight, x, events_at(a, index));
        }
      }
    }
    a.out[index] = canonical_nan(static_cast<T>(acc));
  };
  parallel_for(s.batch * s.out_channels, [&](int64_t plane) {
    int64_t index = plane * s.out_height * s.out_width;
    for (int64_t p = 0; p < s.out_height; ++p) {
      for (int64_t q = 0; q < s.out_width; ++q) {
        output(plane / s.out_channels, plane % s.out_channels, p, q, index++);
      }
    }
  });
}

template <typename T>
void scalar_conv2d_backward_input(const ConvArgs<T>& a) {
  const ConvShape& s = a.shape;
  const ChainRule<T> chain(*a.accumulator);
  const auto output = [&](int64_t n, int64_t c, int64_t h, int64_t w, int64_t index) {
    double acc = 0;
    for (int64_t o = 0; o < s.out_channels; ++o) {
      for (int64_t r = 0; r < s.kernel_height; ++r) {
        const int64_t p = output_position(h, r, s.stride_h, s.pad_h, s.dilation_h, s.out_height);
        for (int64_t t = 0; t < s.kernel_width; ++t) {
          const int64_t q = output_position(w, t, s.stride_w, s.pad_w, s.dilation_w, s.out_width);
          const T weight =
              a.w[((o * s.in_channels + c) * s.kernel_height + r) * s.kernel_width + t];
          const T dy = at(a.dy, n * s.out_channels + o, p, q, s.out_height, s.out_width);
          acc = chain.step(acc, weight, dy, events_at(a, index));
        }
      }
    }
    a.out[index] = canonical_nan(static_cast<T>(acc));
  };
  parallel_for(s.batch * s.in_channels, [&](int64_t plane) {
    int64_t index = plane * s.in_height * s.in_width;
    for (int64_t h = 0; h < s.in_height; ++h) {
      for (int64_t w = 0; w < s.in_width; ++w) {
        output(plane / s.in_channels, plane % s.in_channels, h, w, index++);
      }
    }
  });
}

template <typename T>
void scalar_conv2d_backward_weight(const ConvArgs<T>& a) {
  const ConvShape& s = a.shape;
  const ChainRule<T> chain(*a.accumulator);
  const auto output = [&](int64_t o, int64_t c, int64_t r, int64_t t, int64_t index) {
    double acc = 0;
    for (int64_t n = 0; n < s.batch; ++n) {
      for (int64_t p = 0; p < s.out_height; ++p) {
        const int64_t h = input_position(p, r, s.stride_h, s.pad_h, s.dilation_h, s.in_height);
        for (int64_t q = 0; q < s.out_width; ++q) {
          const int64_t w = input_position(q, t, s.stride_w, s.pad_w, s.dilation_w, s.in_width);
          const T dy = at(a.dy, n * s.out_channels + o, p, q, s.out_height, s.out_width);
          const T x = at(a.x, n * s.in_channels + c, h, w, s.in_height, s.in_width);
          acc = chain.step(acc, dy, x, events_at(a, index));
        }
      }
    }
    a.out[index] = canonical_nan(static_cast<T>(acc));
  };
  parallel_for(s.out_channels * s.in_channels, [&](int64_t plane) {
    int64_t index = plane * s.kernel_height * s.kernel_width;
    for (int64_t r = 0; r < s.kernel_height; ++r) {
      for (int64_t t = 0; t < s.kernel_width; ++t) {
        output(plane / s.in_channels, plane % s.in_channels, r, t, index++);
      }
    }
  });
}

#define LOCKSTEP_INSTANTIATE(T)                                   \
  template void scalar_conv2d_forward(const ConvArgs<T>&);        \
  template void scalar_conv2d_backward_input(const ConvArgs<T>&); \
  template void scalar_conv2d_backward_weight(const ConvArgs<T>&);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep
