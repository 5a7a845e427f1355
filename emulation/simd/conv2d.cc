// Convolution over any gemm. Work is cut into (image, rows of pixels), or into columns of the
// weight gradient, so that the gathered columns of a piece stay in a core's cache.
#include "emulation/simd/conv2d.h"

#include <type_traits>
#include <vector>

#include "emulation/simd/columns.h"
#include "emulation/simd/gemm.h"
#include "emulation/simd/gemm_plan.h"
#include "src/core/parallel.h"

namespace lockstep {
namespace {

template <typename T>
using Gemm = void (*)(const GemmArgs<T>&);
template <typename T>
using Convolution = void (*)(Gemm<T>, const ConvArgs<T>&);

// Elements of gathered columns per piece: half of a 1 MB second-level cache in floats.
constexpr int64_t kColumnElements = 1 << 17;
// Columns of the weight gradient per piece: the widest register tile.
constexpr int64_t kWeightColumns = 32;

// Rows of `width` pixels per piece, when each pixel needs `depth` gathered elements.
int64_t rows_per_piece(int64_t depth, int64_t width, int64_t rows) {
  return std::clamp<int64_t>(kColumnElements / std::max<int64_t>(1, depth * width), 1, rows);
}

// Events of a product whose C is a part of a wider matrix, OR-ed back into place.
void scatter_events(const uint8_t* part, int64_t m, int64_t n, uint8_t* events, int64_t stride) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) events[i * stride + j] |= part[i * n + j];
  }
}

template <typename T>
struct Scratch {
  Workspace<T> columns;
  Workspace<uint8_t> events;
};

// out[image] (M, rows * width) = a (M, depth) * columns(image), pieces of pixel rows spread over
// the threads. gather(image, row of the columns, first pixel row, one past the last, out).
template <typename T, typename Gather>
void multiply_columns(Gemm<T> gemm, const ConvArgs<T>& args, const T* a, int64_t m, int64_t depth,
                      int64_t rows, int64_t width, Gather gather) {
  const int64_t per_piece = rows_per_piece(depth, width, rows);
  const int64_t pieces = (rows + per_piece - 1) / per_piece;
  parallel_for(args.shape.batch * pieces, [&](int64_t task) {
    static thread_local Scratch<T> scratch;
    const int64_t image = task / pieces, begin = task % pieces * per_piece;
    const int64_t end = std::min(rows, begin + per_piece), n = (end - begin) * width;
    T* columns = scratch.columns.get(static_cast<size_t>(depth * n)).data();
    for (int64_t row = 0; row < depth; ++row) gather(image, row, begin, end, columns + row * n);
    const int64_t offset = image * m * rows * width + begin * width;
    uint8_t* events = nullptr;
    if (args.events != nullptr) {
      events = scratch.events.get(static_cast<size_t>(m * n)).data();
      std::fill(events, events + m * n, uint8_t{0});
    }
    gemm({.m = m,
          .n = n,
          .k = depth,
          .a = a,
          .lda = depth,
          .b = columns,
          .ldb = n,
          .c = args.out + offset,
          .ldc = rows * width,
          .accumulator = args.accumulator,
          .events = events});
    if (events != nullptr) scatter_events(events, m, n, args.events + offset, rows * width);
  });
}

template <typename T>
void forward(Gemm<T> gemm, const ConvArgs<T>& a) {
  const ConvShape& s = a.shape;
  const int64_t image_size = s.in_channels * s.in_height * s.in_width;
  multiply_columns(gemm, a, a.w, s.out_channels, s.in_channels * s.kernel_height * s.kernel_width,
                   s.out_height, s.out_width,
                   [&](int64_t image, int64_t row, int64_t begin, int64_t end, T* out) {
                     forward_column_row(s, a.x + image * image_size, row, begin, end, out);
                   });
}

template <typename T>
void backward_input(Gemm<T> gemm, const ConvArgs<T>& a) {
  const ConvShape& s = a.shape;
  const int64_t taps = s.kernel_height * s.kernel_width, depth = s.out_channels * taps;
  std::vector<T> w(static_cast<size_t>(s.in_channels * depth));  // (C, O, R, S)
  for (int64_t o = 0; o < s.out_channels; ++o) {
    for (int64_t c = 0; c < s.in_channels; ++c) {
      const T* from = a.w + (o * s.in_channels + c) * taps;
      std::copy(from, from + taps, w.begin() + c * depth + o * taps);
    }
  }
  const int64_t image_size = s.out_channels * s.out_height * s.out_width;
  multiply_columns(gemm, a, w.data(), s.in_channels, depth, s.in_height, s.in_width,
                   [&](int64_t image, int64_t row, int64_t begin, int64_t end, T* out) {
                     backward_column_row(s, a.dy + image * image_size, row, begin, end, out);
                   });
}

// One chain over all images: each image's product starts from the sums so far.
template <typename T>
void backward_weight(Gemm<T> gemm, const ConvArgs<T>& a) {
  const ConvShape& s = a.shape;
  const int64_t columns = s.in_channels * s.kernel_height * s.kernel_width;
  const int64_t pixels = s.out_height * s.out_width, m = s.out_channels;
  parallel_for((columns + kWeightColumns - 1) / kWeightColumns, [&](int64_t task) {
    static thread_local Scratch<T> scratch;
    const int64_t first = task * kWeightColumns, n = std::min(kWeightColumns, columns - first);
    T* rows = scratch.columns.get(static_cast<size_t>(n * pixels)).data();
    uint8_t* events = nullptr;
    if (a.events != nullptr) {
      events = scratch.events.get(static_cast<size_t>(m * n)).data();
      std::fill(events, events + m * n, uint8_t{0});
    }
    for (int64_t image = 0; image < s.batch; ++image) {
      const T* x = a.x + image * s.in_channels * s.in_height * s.in_width;
      for (int64_t i = 0; i < n; ++i) {
        forward_column_row(s, x, first + i, 0, s.out_height, rows + i, n);
      }
      gemm({.m = m,
            .n = n,
            .k = pixels,
            .a = a.dy + image * m * pixels,
            .lda = pixels,
            .b = rows,
            .ldb = n,
            .c = a.out + first,
            .ldc = columns,
            .start_from_c = image > 0,
            .accumulator = a.accumulator,
            .events = events});
    }
    if (events != nullptr) scatter_events(events, m, n, a.events + first, columns);
  });
}

std::vector<double> widen(const float* x, int64_t count) {
  return x != nullptr ? std::vector<double>(x, x + count) : std::vector<double>();
}

// Float arrays with a chain in double run in double throughout and are rounded to float at the end.
void run(const ConvArgs<float>& a, int64_t out_size, Convolution<float> in_float, Gemm<float> gemm,
         Convolution<double> in_double, Gemm<double> double_gemm) {
  if (!a.accumulator->format->is_fp64()) return in_float(gemm, a);
  const ConvShape& s = a.shape;
  const int64_t taps = s.kernel_height * s.kernel_width;
  const auto x = widen(a.x, s.batch * s.in_channels * s.in_height * s.in_width);
  const auto w = widen(a.w, s.out_channels * s.in_channels * taps);
  const auto dy = widen(a.dy, s.batch * s.out_channels * s.out_height * s.out_width);
  std::vector<double> out(static_cast<size_t>(out_size));
  in_double(double_gemm, {.shape = s,
                          .x = x.data(),
                          .w = w.data(),
                          .dy = dy.data(),
                          .out = out.data(),
                          .accumulator = a.accumulator,
                          .events = a.events});
  std::copy(out.begin(), out.end(), a.out);
}
void run(const ConvArgs<double>& a, int64_t, Convolution<double> in_double, Gemm<double> gemm,
         Convolution<double>, Gemm<double>) {
  in_double(gemm, a);
}

int64_t y_size(const ConvShape& s) {
  return s.batch * s.out_channels * s.out_height * s.out_width;
}
int64_t x_size(const ConvShape& s) {
  return s.batch * s.in_channels * s.in_height * s.in_width;
}
int64_t w_size(const ConvShape& s) {
  return s.out_channels * s.in_channels * s.kernel_height * s.kernel_width;
}

}  // namespace

#define LOCKSTEP_CONV2D(SET, T)                                                                   \
  void SET##_conv2d_forward(const ConvArgs<T>& a) {                                               \
    run(a, y_size(a.shape), forward<T>, SET##_gemm, forward<double>, SET##_gemm);                 \
  }                                                                                               \
  void SET##_conv2d_backward_input(const ConvArgs<T>& a) {                                        \
    run(a, x_size(a.shape), backward_input<T>, SET##_gemm, backward_input<double>, SET##_gemm);   \
  }                                                                                               \
  void SET##_conv2d_backward_weight(const ConvArgs<T>& a) {                                       \
    run(a, w_size(a.shape), backward_weight<T>, SET##_gemm, backward_weight<double>, SET##_gemm); \
  }
LOCKSTEP_CONV2D(avx2, float)
LOCKSTEP_CONV2D(avx2, double)
LOCKSTEP_CONV2D(avx512, float)
LOCKSTEP_CONV2D(avx512, double)
#undef LOCKSTEP_CONV2D

}  // namespace lockstep
