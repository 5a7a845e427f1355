// Work is cut into (image, rows of pixels). The weight gradient is cut into tiles of its taps and
// output channels, which go over all images in order.
#include "emulation/kernels/simd/convolution/conv2d_direct.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "emulation/kernels/scalar/convolution/conv2d.h"
#include "emulation/kernels/simd/convolution/conv_planes.h"
#include "emulation/kernels/simd/products/gemm_plan.h"
#include "emulation/kernels/simd/targets.h"
#include "src/core/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "emulation/kernels/simd/convolution/conv2d_direct.cc"
#include <hwy/foreach_target.h>

#include <hwy/highway.h>
#include "emulation/kernels/simd/convolution/conv_fill-inl.h"
#include "emulation/kernels/simd/convolution/conv_tile-inl.h"
#include "emulation/kernels/simd/convolution/conv_weight-inl.h"
#include "emulation/kernels/simd/products/gemm_pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET

// Elements of planes per piece of an image: half of a 1 MB second-level cache in floats.
constexpr int64_t kPlaneElements = 1 << 17;
// All weights up to this size stay in a first-level cache while one strip of pixels is read; larger
// ones are read panel by panel, each panel with all strips.
constexpr size_t kWeightBytes = 16 << 10;

// A convolution with packed weights: out (rows, pixels) = weights (rows, terms) times the pixels
// that the outputs of a piece of an image read.
template <typename T>
class PlaneProduct {
 public:
  using Tile = PixelTile<T>;

  // `weights`: row-major. `reversed`: tap r of `weights` is tap taps - 1 - r of the shape.
  PlaneProduct(const PlaneShape& shape, const T* weights, int64_t rows, bool reversed)
      : shape_(shape),
        rows_(rows),
        terms_(shape.channels * shape.h.taps * shape.w.taps),
        panels_(ceil_div(rows, Tile::kRows)),
        panel_rows_(ceil_div(rows, panels_)),
        cols_(rows == 1 ? Tile::kRowCols : Tile::kCols),
        reversed_(reversed),
        packed_(static_cast<size_t>(panels_ * terms_ * Tile::kRows)),
        piece_rows_(find_piece_rows()),
        piece_offsets_(shape.offsets(piece_rows_, reversed)) {
    if (shape.has_one_copy()) note_ends();
    for (int64_t p = 0; p < panels_; ++p) {
      const int64_t first = p * panel_rows_, count = std::min(panel_rows_, rows - first);
      pack_lines<Tile::kRows>(weights + first * terms_, terms_, static_cast<int>(count), terms_,
                              packed_.data() + p * terms_ * Tile::kRows);
    }
  }

  // Output rows per piece: pieces are about equal, the last may be shorter.
  int64_t rows_per_piece() const { return piece_rows_; }

  // Row i of output rows [begin, end) goes to out + i * row_step.
  void run(const T* images, int64_t image, int64_t begin, int64_t end, T* out,
           int64_t row_step) const {
    static thread_local Workspace<T> plane_space;
    const int64_t pixels = (end - begin) * shape_.w.outputs;
    if (terms_ == 0) {
      for (int64_t i = 0; i < rows_; ++i) std::fill_n(out + i * row_step, pixels, T(0));
      return;
    }
    const int64_t size = shape_.size(end - begin);
    // Readable on both sides of the planes; these values are never used. A whole vector before
    // them, so that they stay aligned.
    const int64_t before = shape_.has_one_copy() ? Tile::kLanes : 0, after = cols_ + before;
    T* planes = plane_space.get(static_cast<size_t>(before + size + after)).data();
    std::fill_n(planes, before, T(0));
    planes += before;
    fill_planes(shape_, images + image * shape_.channels * shape_.h.size * shape_.w.size, begin,
                end, planes);
    std::fill_n(planes + size, after, T(0));

    const bool has_usual_height = end - begin == piece_rows_;
    std::vector<int64_t> own_offsets;
    if (!has_usual_height) own_offsets = shape_.offsets(end - begin, reversed_);
    const std::vector<int64_t>& offsets = has_usual_height ? piece_offsets_ : own_offsets;
    const auto tile = [&](int64_t p, int64_t at) {
      const int64_t first = p * panel_rows_;
      const T *left = nullptr, *right = nullptr;
      if (shape_.has_one_copy()) {
        const int64_t column = at % shape_.w.size;
        left = has_left_.data() + column, right = has_right_.data() + column;
      }
      Tile()({.terms = terms_,
              .weights = packed_.data() + p * terms_ * Tile::kRows,
              .pixels = planes + at,
              .offsets = offsets.data(),
              .first_inside = reversed_ ? right : left,
              .last_inside = reversed_ ? left : right,
              .rows = static_cast<int>(std::min(panel_rows_, rows_ - first)),
              .cols = static_cast<int>(std::min(cols_, pixels - at)),
              .out = out + first * row_step + at,
              .row_step = row_step});
    };
    if (packed_.size() * sizeof(T) <= kWeightBytes) {
      for (int64_t at = 0; at < pixels; at += cols_) {
        for (int64_t p = 0; p < panels_; ++p) tile(p, at);
      }
    } else {
      for (int64_t p = 0; p < panels_; ++p) {
        for (int64_t at = 0; at < pixels; at += cols_) tile(p, at);
      }
    }
  }

 private:
  void note_ends() {
    const int64_t width = shape_.w.size, size = width + cols_;
    for (int64_t q = 0; q < size; ++q) {
      has_left_.push_back(q % width == 0 ? T(0) : T(1));
      has_right_.push_back(q % width == width - 1 ? T(0) : T(1));
    }
  }
  int64_t find_piece_rows() const {
    const int64_t height = shape_.h.outputs;
    if (terms_ == 0 || height == 0) return height;
    const int64_t beyond = shape_.size(1) - shape_.size(0);  // that one more row takes
    const int64_t fitting = (kPlaneElements - shape_.size(0)) / std::max<int64_t>(1, beyond);
    // Rows that two pieces share are filled twice: a piece has at least as many of its own.
    const int64_t fewest = std::clamp<int64_t>(shape_.plane_rows(0), 1, height);
    return ceil_div(height, ceil_div(height, std::clamp<int64_t>(fitting, fewest, height)));
  }

  const PlaneShape shape_;
  const int64_t rows_, terms_, panels_, panel_rows_;
  const int64_t cols_;  // of a tile
  const bool reversed_;
  std::vector<T> packed_;
  const int64_t piece_rows_;
  const std::vector<int64_t> piece_offsets_;
  // For one copy, by column and repeated: 1 where the row has a pixel to the left or right, else 0.
  std::vector<T> has_left_, has_right_;
};

template <typename T>
void multiply_planes(const PlaneShape& shape, const T* images, int64_t batch, const T* weights,
                     int64_t rows, bool reversed, T* out) {
  const PlaneProduct<T> product(shape, weights, rows, reversed);
  const int64_t height = shape.h.outputs, plane = height * shape.w.outputs;
  const int64_t per_piece = product.rows_per_piece(), pieces = ceil_div(height, per_piece);
  parallel_for(batch * pieces, [&](int64_t task) {
    const int64_t image = task / pieces, begin = task % pieces * per_piece;
    product.run(images, image, begin, std::min(height, begin + per_piece),
                out + image * rows * plane + begin * shape.w.outputs, plane);
  });
}

// An image of one row is an image of one column: its planes need no copy for each tap, and rows are
// cut into pieces. The terms keep their order.
template <typename T>
ConvArgs<T> upright(ConvArgs<T> a) {
  ConvShape& s = a.shape;
  if (s.in_height != 1 || s.kernel_height != 1 || s.out_height != 1 || s.pad_h != 0) return a;
  std::swap(s.in_height, s.in_width);
  std::swap(s.kernel_height, s.kernel_width);
  std::swap(s.out_height, s.out_width);
  std::swap(s.pad_h, s.pad_w);
  std::swap(s.dilation_h, s.dilation_w);
  s.stride_h = s.stride_w;
  s.stride_w = 1;
  return a;
}

template <typename T>
void direct_forward(const ConvArgs<T>& args) {
  const ConvArgs<T> a = upright(args);
  multiply_planes(forward_planes(a.shape), a.x, a.shape.batch, a.w, a.shape.out_channels, false,
                  a.out);
}

// (O, C, taps) as (C, O, those taps).
template <typename T>
std::vector<T> weights_by_input(const ConvArgs<T>& a, const TapSet& h, const TapSet& w) {
  const ConvShape& s = a.shape;
  std::vector<T> turned;
  turned.reserve(static_cast<size_t>(s.in_channels * s.out_channels * h.count * w.count));
  for (int64_t c = 0; c < s.in_channels; ++c) {
    for (int64_t o = 0; o < s.out_channels; ++o) {
      const T* from = a.w + (o * s.in_channels + c) * s.kernel_height * s.kernel_width;
      for (int64_t r = 0; r < h.count; ++r) {
        for (int64_t t = 0; t < w.count; ++t) {
          turned.push_back(from[(h.first + r * h.step) * s.kernel_width + w.first + t * w.step]);
        }
      }
    }
  }
  return turned;
}

// x at every step-th place of `out`.
template <typename T>
void spread_row(const T* const* x, int64_t step, int64_t count, T* out) {
  int64_t i = 0;
  if (step == 2) {
    const hn::CappedTag<T, 8> d;
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    for (; i + lanes <= count / 2; i += lanes) {
      hn::StoreInterleaved2(hn::LoadU(d, x[0] + i), hn::LoadU(d, x[1] + i), d, out + 2 * i);
    }
  }
  for (int64_t at = i * step; at < count; ++at) out[at] = x[at % step][at / step];
}

template <typename T>
bool has_negative_zero(const T* x, int64_t count) {
  const hn::ScalableTag<T> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto negative_zero = hn::BitCast(du, hn::SignBit(d));
  for (int64_t i = 0; i < count; i += lanes) {
    const auto inside = hn::FirstN(d, static_cast<size_t>(std::min(lanes, count - i)));
    const auto bits = hn::BitCast(du, hn::MaskedLoad(inside, d, x + i));
    if (!hn::AllFalse(du, hn::Eq(bits, negative_zero))) return true;
  }
  return false;
}

// dx of a convolution with a stride. An input pixel is read through every stride-th tap only, in
// both directions; the other terms of its sum are a weight times zero. Pixels that are read through
// the same taps form a class: its image is a convolution of dy without gaps.
//
// A finite weight times zero changes no sum except one: -0 may become +0. So the sums of a class
// equal the whole sums, unless they end in -0: those are formed again.
template <typename T>
class StridedInputGradient {
 public:
  explicit StridedInputGradient(const ConvArgs<T>& a)
      : a_(a),
        s_(a.shape),
        rows_(tap_sets({s_.in_height, s_.kernel_height, s_.stride_h, s_.dilation_h, s_.pad_h, 1,
                        s_.out_height})),
        cols_(tap_sets({s_.in_width, s_.kernel_width, s_.stride_w, s_.dilation_w, s_.pad_w, 1,
                        s_.out_width})) {}

  void run() const {
    for (int64_t i = 0; i < s_.stride_h; ++i) {
      const TapSet& h = rows_[static_cast<size_t>(i)];
      if (h.axis.outputs == 0) continue;
      std::vector<PlaneProduct<T>> products;
      for (const TapSet& w : cols_) {
        products.emplace_back(PlaneShape{s_.out_channels, h.axis, w.axis},
                              weights_by_input(a_, h, w).data(), s_.in_channels, true);
      }
      run_row_class(i, products);
    }
  }

 private:
  void run_row_class(int64_t first_row, const std::vector<PlaneProduct<T>>& products) const {
    const int64_t height = rows_[static_cast<size_t>(first_row)].axis.outputs;
    int64_t per_piece = height;
    for (const auto& product : products) per_piece = std::min(per_piece, product.rows_per_piece());
    const int64_t pieces = ceil_div(height, per_piece);
    parallel_for(s_.batch * pieces, [&](int64_t task) {
      static thread_local Workspace<T> space;
      const int64_t image = task / pieces, begin = task % pieces * per_piece;
      const int64_t rows = std::min(height, begin + per_piece) - begin;
      const int64_t size = s_.in_channels * rows * cols_[0].axis.outputs;  // of the largest class
      T* const sums = space.get(static_cast<size_t>(size * s_.stride_w)).data();
      for (int64_t j = 0; j < s_.stride_w; ++j) {
        const int64_t width = cols_[static_cast<size_t>(j)].axis.outputs;
        products[static_cast<size_t>(j)].run(a_.dy, image, begin, begin + rows, sums + j * size,
                                             rows * width);
      }
      if (s_.in_width == 1 && s_.stride_w == 1) {
        return spread_columns(first_row, image, begin, rows, sums);
      }
      std::vector<const T*> parts(static_cast<size_t>(s_.stride_w));
      for (int64_t c = 0; c < s_.in_channels; ++c) {
        for (int64_t row = 0; row < rows; ++row) {
          bool doubtful = false;
          for (int64_t j = 0; j < s_.stride_w; ++j) {
            const int64_t width = cols_[static_cast<size_t>(j)].axis.outputs;
            parts[static_cast<size_t>(j)] = sums + j * size + (c * rows + row) * width;
            doubtful |= has_negative_zero(parts[static_cast<size_t>(j)], width);
          }
          const int64_t h = first_row + (begin + row) * s_.stride_h;
          T* out = a_.out + ((image * s_.in_channels + c) * s_.in_height + h) * s_.in_width;
          spread_row(parts.data(), s_.stride_w, s_.in_width, out);
          if (doubtful) repair(image, c, h, out);
        }
      }
    });
  }

  // Of images that are one column.
  void spread_columns(int64_t first_row, int64_t image, int64_t begin, int64_t rows,
                      const T* sums) const {
    for (int64_t c = 0; c < s_.in_channels; ++c, sums += rows) {
      T* const out = a_.out + (image * s_.in_channels + c) * s_.in_height;
      int64_t h = first_row + begin * s_.stride_h;
      for (int64_t row = 0; row < rows; ++row, h += s_.stride_h) out[h] = sums[row];
      if (!has_negative_zero(sums, rows)) continue;
      h = first_row + begin * s_.stride_h;
      for (int64_t row = 0; row < rows; ++row, h += s_.stride_h) repair(image, c, h, out + h);
    }
  }

  // Forms sums of a row that are -0 again, with all their terms.
  void repair(int64_t image, int64_t c, int64_t h, T* row) const {
    for (int64_t w = 0; w < s_.in_width; ++w) {
      if (row[w] != 0 || !std::signbit(row[w])) continue;
      T sum = 0;
      for (int64_t o = 0; o < s_.out_channels; ++o) {
        const T* weights = a_.w + (o * s_.in_channels + c) * s_.kernel_height * s_.kernel_width;
        const T* dy = a_.dy + (image * s_.out_channels + o) * s_.out_height * s_.out_width;
        for (int64_t r = 0; r < s_.kernel_height; ++r) {
          const int64_t p =
              output_position(h, r, s_.stride_h, s_.pad_h, s_.dilation_h, s_.out_height);
          for (int64_t t = 0; t < s_.kernel_width; ++t) {
            const int64_t q =
                output_position(w, t, s_.stride_w, s_.pad_w, s_.dilation_w, s_.out_width);
            const T seen = p < 0 || q < 0 ? T(0) : dy[p * s_.out_width + q];
            sum = std::fma(weights[r * s_.kernel_width + t], seen, sum);
          }
        }
      }
      row[w] = sum;
    }
  }

  const ConvArgs<T>& a_;
  const ConvShape& s_;
  const std::vector<TapSet> rows_, cols_;
};

template <typename T>
void direct_backward_input(const ConvArgs<T>& args) {
  const ConvArgs<T> a = upright(args);
  const ConvShape& s = a.shape;
  const int64_t weights = s.out_channels * s.in_channels * s.kernel_height * s.kernel_width;
  const bool strided = std::max(s.stride_h, s.stride_w) > 1;
  if (strided && std::all_of(a.w, a.w + weights, [](T w) { return std::isfinite(w); })) {
    return StridedInputGradient<T>(a).run();
  }
  const TapSet all_h{0, 1, s.kernel_height, {}}, all_w{0, 1, s.kernel_width, {}};
  multiply_planes(backward_planes(s), a.dy, s.batch, weights_by_input(a, all_h, all_w).data(),
                  s.in_channels, true, a.out);
}

template <typename T>
void direct_backward_weight(const ConvArgs<T>& a) {
  constexpr int kRow = 3;  // the common width of a kernel
  if (a.shape.kernel_width == kRow && a.shape.dilation_w == 1) {
    WeightGradient<T, kRow>(a).run();
  } else {
    WeightGradient<T, 1>(a).run();
  }
}

template <typename T>
DirectConv2d<T> direct_conv2d() {
  return {direct_forward<T>, direct_backward_input<T>, direct_backward_weight<T>};
}

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep {

template <>
DirectConv2d<float> avx2_direct_conv2d() {
  return N_AVX2::direct_conv2d<float>();
}
template <>
DirectConv2d<double> avx2_direct_conv2d() {
  return N_AVX2::direct_conv2d<double>();
}
template <>
DirectConv2d<float> avx512_direct_conv2d() {
  return N_AVX3::direct_conv2d<float>();
}
template <>
DirectConv2d<double> avx512_direct_conv2d() {
  return N_AVX3::direct_conv2d<double>();
}

}  // namespace lockstep
#endif  // HWY_ONCE
