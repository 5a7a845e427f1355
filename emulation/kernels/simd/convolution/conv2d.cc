// Convolution over any gemm, for cases without a direct kernel. Work is cut into (image, rows of
// pixels), or into columns of the weight gradient, so that the gathered columns of a piece stay in
// a core's cache.
#include "emulation/kernels/simd/convolution/conv2d.h"

#include <type_traits>
#include <vector>

#include "emulation/kernels/simd/convolution/conv2d_direct.h"
#include "emulation/kernels/simd/elements/columns.h"
#include "emulation/kernels/simd/products/gemm.h"
#include "emulation/kernels/simd/products/gemm_plan.h"
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

// Rows of `width` pixels per piece if each pixel needs `depth` gathered elements.
int64_t rows_per_piece(int64_t depth, int64_t width, int64_t rows) {
  return std::clamp<int64_t>(kColumnElements / std::max<int64_t>(1, depth * width), 1, rows);
}

// Events of a product whose C is part of a wider matrix, OR-ed back into place.
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
                      int64_t rows, int64_t width, const Format* columns_format, Gather gather) {
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
          .a_format = args.w_format,
          .b_format = columns_format,
          .events = events});
    if (events != nullptr) scatter_events(events, m, n, args.events + offset, rows * width);
  });
}

template <typename T>
void forward(Gemm<T> gemm, const ConvArgs<T>& a) {
  const ConvShape& s = a.shape;
  const int64_t image_size = s.in_channels * s.in_height * s.in_width;
  multiply_columns(gemm, a, a.w, s.out_channels, s.in_channels * s.kernel_height * s.kernel_width,
                   s.out_height, s.out_width, a.x_format,
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
  multiply_columns(gemm, a, w.data(), s.in_channels, depth, s.in_height, s.in_width, a.dy_format,
                   [&](int64_t image, int64_t row, int64_t begin, int64_t end, T* out) {
                     backward_column_row(s, a.dy + image * image_size, row, begin, end, out);
                   });
}

// The sums of columns [first, first + n) of the weight gradient, image by image. Each product
// starts from the sums so far. A chain may be cut anywhere. Other accumulators form blocks of
// products; pixels that do not fill a block wait for the next image.
template <typename T>
class WeightColumns {
 public:
  WeightColumns(Gemm<T> gemm, const ConvArgs<T>& a, int64_t first, int64_t n)
      : gemm_(gemm),
        a_(a),
        s_(a.shape),
        first_(first),
        n_(n),
        m_(s_.out_channels),
        pixels_(s_.out_height * s_.out_width),
        cut_anywhere_(a.accumulator->adds() || s_.batch == 1) {}

  void run() {
    static thread_local WeightScratch scratch;
    const int64_t capacity = pixels_ + (cut_anywhere_ ? 0 : kDepthStep - 1);
    T* rows = scratch.columns.get(static_cast<size_t>(n_ * capacity)).data();
    T* factors = nullptr;
    if (!cut_anywhere_) factors = scratch.factors.get(static_cast<size_t>(m_ * capacity)).data();
    uint8_t* events = nullptr;
    if (a_.events != nullptr) {
      events = scratch.events.get(static_cast<size_t>(m_ * n_)).data();
      std::fill(events, events + m_ * n_, uint8_t{0});
    }
    int64_t waiting = 0;
    bool begun = false;
    for (int64_t image = 0; image < s_.batch; ++image) {
      const T* dy = a_.dy + image * m_ * pixels_;
      gather(image, rows + waiting * n_);
      const int64_t have = waiting + pixels_;
      const bool whole = cut_anywhere_ || image + 1 == s_.batch;
      const int64_t ready = whole ? have : have / kDepthStep * kDepthStep;
      for (int64_t o = 0; factors != nullptr && o < m_; ++o) {
        std::copy_n(dy + o * pixels_, pixels_, factors + o * capacity + waiting);
      }
      if (ready > 0) {
        multiply(factors != nullptr ? factors : dy, factors != nullptr ? capacity : pixels_, rows,
                 ready, begun, events);
        begun = true;
      }
      waiting = have - ready;
      if (ready == 0 || waiting == 0) continue;
      std::copy_n(rows + ready * n_, waiting * n_, rows);
      for (int64_t o = 0; o < m_; ++o) {
        std::copy_n(factors + o * capacity + ready, waiting, factors + o * capacity);
      }
    }
    if (events != nullptr) {
      scatter_events(events, m_, n_, a_.events + first_, s_.in_channels * taps());
    }
  }

 private:
  struct WeightScratch : Scratch<T> {
    Workspace<T> factors;
  };
  int64_t taps() const { return s_.kernel_height * s_.kernel_width; }

  void gather(int64_t image, T* out) const {
    const T* x = a_.x + image * s_.in_channels * s_.in_height * s_.in_width;
    for (int64_t i = 0; i < n_; ++i) {
      forward_column_row(s_, x, first_ + i, 0, s_.out_height, out + i, n_);
    }
  }
  void multiply(const T* factors, int64_t lda, const T* rows, int64_t k, bool begun,
                uint8_t* events) const {
    gemm_({.m = m_,
           .n = n_,
           .k = k,
           .a = factors,
           .lda = lda,
           .b = rows,
           .ldb = n_,
           .c = a_.out + first_,
           .ldc = s_.in_channels * taps(),
           .start_from_c = begun,
           .accumulator = a_.accumulator,
           .a_format = a_.dy_format,
           .b_format = a_.x_format,
           .events = events});
  }

  Gemm<T> gemm_;
  const ConvArgs<T>& a_;
  const ConvShape& s_;
  int64_t first_, n_, m_, pixels_;
  bool cut_anywhere_;
};

template <typename T>
void backward_weight(Gemm<T> gemm, const ConvArgs<T>& a) {
  const AccumulatorKind kind = a.accumulator->kind;
  if (kind == AccumulatorKind::kKahan || kind == AccumulatorKind::kPairwise) {
    return scalar_conv2d_backward_weight(a);  // their sums cannot be cut
  }
  const ConvShape& s = a.shape;
  const int64_t columns = s.in_channels * s.kernel_height * s.kernel_width;
  parallel_for((columns + kWeightColumns - 1) / kWeightColumns, [&](int64_t task) {
    const int64_t first = task * kWeightColumns;
    WeightColumns<T>(gemm, a, first, std::min(kWeightColumns, columns - first)).run();
  });
}

std::vector<double> widen(const float* x, int64_t count) {
  return x != nullptr ? std::vector<double>(x, x + count) : std::vector<double>();
}

// Float arrays with a chain in double: all steps run in double and are rounded to float at the end.
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

// Uses the direct kernel if there is one, otherwise the target's products.
template <typename T, DirectConv2d<T> (*kDirect)(), Gemm<T> kGemm, Gemm<double> kDoubleGemm>
void use_conv2d(Kernels<T>& kernels) {
  kernels.conv2d_forward = [](const ConvArgs<T>& a) {
    if (has_direct_conv2d(a)) return kDirect().forward(a);
    run(a, y_size(a.shape), forward<T>, kGemm, forward<double>, kDoubleGemm);
  };
  kernels.conv2d_backward_input = [](const ConvArgs<T>& a) {
    if (has_direct_conv2d(a)) return kDirect().backward_input(a);
    run(a, x_size(a.shape), backward_input<T>, kGemm, backward_input<double>, kDoubleGemm);
  };
  kernels.conv2d_backward_weight = [](const ConvArgs<T>& a) {
    if (has_direct_conv2d(a)) return kDirect().backward_weight(a);
    run(a, w_size(a.shape), backward_weight<T>, kGemm, backward_weight<double>, kDoubleGemm);
  };
}

}  // namespace

void use_simd_conv2d(KernelSet& set, SimdTarget target) {
  if (target == SimdTarget::kAvx2) {
    use_conv2d<float, avx2_direct_conv2d<float>, avx2_gemm, avx2_gemm>(set.f32);
    use_conv2d<double, avx2_direct_conv2d<double>, avx2_gemm, avx2_gemm>(set.f64);
  } else {
    use_conv2d<float, avx512_direct_conv2d<float>, avx512_gemm, avx512_gemm>(set.f32);
    use_conv2d<double, avx512_direct_conv2d<double>, avx512_gemm, avx512_gemm>(set.f64);
  }
}

void conv2d_forward_by(FloatGemm gemm, const ConvArgs<float>& args) {
  forward<float>(gemm, args);
}
void conv2d_backward_input_by(FloatGemm gemm, const ConvArgs<float>& args) {
  backward_input<float>(gemm, args);
}
void conv2d_backward_weight_by(FloatGemm gemm, const ConvArgs<float>& args) {
  backward_weight<float>(gemm, args);
}

void conv2d_backward_weight_at_once(FloatGemm gemm, const ConvArgs<float>& args,
                                    int64_t most_elements) {
  const ConvShape& s = args.shape;
  const int64_t pixels = s.out_height * s.out_width, k = s.batch * pixels, m = s.out_channels;
  const int64_t columns = s.in_channels * s.kernel_height * s.kernel_width;
  const int64_t image_size = s.in_channels * s.in_height * s.in_width;
  std::vector<float> factors(static_cast<size_t>(m * k));  // (O, N P Q)
  parallel_for(m, [&](int64_t o) {
    for (int64_t image = 0; image < s.batch; ++image) {
      std::copy_n(args.dy + (image * m + o) * pixels, pixels,
                  factors.data() + o * k + image * pixels);
    }
  });
  const int64_t at_once = std::clamp<int64_t>(most_elements / std::max<int64_t>(1, k), 1, columns);
  std::vector<float> gathered(static_cast<size_t>(at_once * k));  // (columns, N P Q)
  for (int64_t first = 0; first < columns; first += at_once) {
    const int64_t n = std::min(at_once, columns - first);
    parallel_for(n, [&](int64_t i) {
      for (int64_t image = 0; image < s.batch; ++image) {
        forward_column_row(s, args.x + image * image_size, first + i, 0, s.out_height,
                           gathered.data() + i * k + image * pixels);
      }
    });
    std::vector<uint8_t> events(args.events != nullptr ? static_cast<size_t>(m * n) : 0);
    gemm({.transpose_b = true,
          .m = m,
          .n = n,
          .k = k,
          .a = factors.data(),
          .lda = k,
          .b = gathered.data(),
          .ldb = k,
          .c = args.out + first,
          .ldc = columns,
          .accumulator = args.accumulator,
          .a_format = args.dy_format,
          .b_format = args.x_format,
          .events = args.events != nullptr ? events.data() : nullptr});
    if (args.events != nullptr) scatter_events(events.data(), m, n, args.events + first, columns);
  }
}

}  // namespace lockstep
