// Direct loops: each output is a chain in the order that emulation/kernels/args/conv_args.h
// declares.
#include "emulation/kernels/scalar/convolution/conv2d.h"

#include <vector>

#include "emulation/accumulator/dot.h"
#include "src/core/parallel.h"

namespace lockstep {
namespace {

// x[n, c, h, w], 0 where h or w is -1.
template <typename T>
T at(const T* x, int64_t plane, int64_t h, int64_t w, int64_t height, int64_t width) {
  return h < 0 || w < 0 ? T(0) : x[(plane * height + h) * width + w];
}

// The factors of one output, in the order of its sum.
template <typename T>
struct Factors {
  std::vector<T> first, second;

  explicit Factors(int64_t count) {
    first.reserve(static_cast<size_t>(count));
    second.reserve(static_cast<size_t>(count));
  }
  void add(T a, T b) {
    first.push_back(a);
    second.push_back(b);
  }
  // Writes the sum to a.out[index] and clears the factors.
  void sum_to(const ConvArgs<T>& a, int64_t index, const Format* first_format,
              const Format* second_format) {
    const DotOperands<T> operands{first.data(), second.data(), static_cast<int64_t>(first.size()),
                                  first_format, second_format};
    uint8_t* events = a.events != nullptr ? a.events + index : nullptr;
    a.out[index] = static_cast<T>(accumulate_dot(*a.accumulator, operands, 0, events));
    first.clear();
    second.clear();
  }
};

}  // namespace

template <typename T>
void scalar_conv2d_forward(const ConvArgs<T>& a) {
  const ConvShape& s = a.shape;
  const auto output = [&](int64_t n, int64_t o, int64_t p, int64_t q, int64_t index,
                          Factors<T>& factors) {
    for (int64_t c = 0; c < s.in_channels; ++c) {
      for (int64_t r = 0; r < s.kernel_height; ++r) {
        const int64_t h = input_position(p, r, s.stride_h, s.pad_h, s.dilation_h, s.in_height);
        for (int64_t t = 0; t < s.kernel_width; ++t) {
          const int64_t w = input_position(q, t, s.stride_w, s.pad_w, s.dilation_w, s.in_width);
          const T weight =
              a.w[((o * s.in_channels + c) * s.kernel_height + r) * s.kernel_width + t];
          const T x = at(a.x, n * s.in_channels + c, h, w, s.in_height, s.in_width);
          factors.add(weight, x);
        }
      }
    }
    factors.sum_to(a, index, a.w_format, a.x_format);
  };
  parallel_for(s.batch * s.out_channels, [&](int64_t plane) {
    int64_t index = plane * s.out_height * s.out_width;
    Factors<T> factors(s.in_channels * s.kernel_height * s.kernel_width);
    for (int64_t p = 0; p < s.out_height; ++p) {
      for (int64_t q = 0; q < s.out_width; ++q) {
        output(plane / s.out_channels, plane % s.out_channels, p, q, index++, factors);
      }
    }
  });
}

template <typename T>
void scalar_conv2d_backward_input(const ConvArgs<T>& a) {
  const ConvShape& s = a.shape;
  const auto output = [&](int64_t n, int64_t c, int64_t h, int64_t w, int64_t index,
                          Factors<T>& factors) {
    for (int64_t o = 0; o < s.out_channels; ++o) {
      for (int64_t r = 0; r < s.kernel_height; ++r) {
        const int64_t p = output_position(h, r, s.stride_h, s.pad_h, s.dilation_h, s.out_height);
        for (int64_t t = 0; t < s.kernel_width; ++t) {
          const int64_t q = output_position(w, t, s.stride_w, s.pad_w, s.dilation_w, s.out_width);
          const T weight =
              a.w[((o * s.in_channels + c) * s.kernel_height + r) * s.kernel_width + t];
          const T dy = at(a.dy, n * s.out_channels + o, p, q, s.out_height, s.out_width);
          factors.add(weight, dy);
        }
      }
    }
    factors.sum_to(a, index, a.w_format, a.dy_format);
  };
  parallel_for(s.batch * s.in_channels, [&](int64_t plane) {
    int64_t index = plane * s.in_height * s.in_width;
    Factors<T> factors(s.out_channels * s.kernel_height * s.kernel_width);
    for (int64_t h = 0; h < s.in_height; ++h) {
      for (int64_t w = 0; w < s.in_width; ++w) {
        output(plane / s.in_channels, plane % s.in_channels, h, w, index++, factors);
      }
    }
  });
}

template <typename T>
void scalar_conv2d_backward_weight(const ConvArgs<T>& a) {
  const ConvShape& s = a.shape;
  const auto output = [&](int64_t o, int64_t c, int64_t r, int64_t t, int64_t index,
                          Factors<T>& factors) {
    for (int64_t n = 0; n < s.batch; ++n) {
      for (int64_t p = 0; p < s.out_height; ++p) {
        const int64_t h = input_position(p, r, s.stride_h, s.pad_h, s.dilation_h, s.in_height);
        for (int64_t q = 0; q < s.out_width; ++q) {
          const int64_t w = input_position(q, t, s.stride_w, s.pad_w, s.dilation_w, s.in_width);
          const T dy = at(a.dy, n * s.out_channels + o, p, q, s.out_height, s.out_width);
          const T x = at(a.x, n * s.in_channels + c, h, w, s.in_height, s.in_width);
          factors.add(dy, x);
        }
      }
    }
    factors.sum_to(a, index, a.dy_format, a.x_format);
  };
  parallel_for(s.out_channels * s.in_channels, [&](int64_t plane) {
    int64_t index = plane * s.kernel_height * s.kernel_width;
    Factors<T> factors(s.batch * s.out_height * s.out_width);
    for (int64_t r = 0; r < s.kernel_height; ++r) {
      for (int64_t t = 0; t < s.kernel_width; ++t) {
        output(plane / s.in_channels, plane % s.in_channels, r, t, index++, factors);
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
