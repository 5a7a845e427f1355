// Work is cut into (image, rows of pixels), or for the weight gradient into tiles of its taps and
// output channels, which pass over all images in order.
#include "emulation/kernels/simd/conv2d_direct.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "emulation/kernels/scalar/conv2d.h"
#include "emulation/kernels/simd/conv_planes.h"
#include "emulation/kernels/simd/gemm_plan.h"
#include "emulation/kernels/simd/targets.h"
#include "src/core/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "emulation/kernels/simd/conv2d_direct.cc"
#include <hwy/foreach_target.h>

#include <hwy/highway.h>
#include "emulation/kernels/simd/conv_fill-inl.h"
#include "emulation/kernels/simd/conv_tile-inl.h"
#include "emulation/kernels/simd/gemm_pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET

// Elements of planes per piece of an image: half of a 1 MB second-level cache in floats.
constexpr int64_t kPlaneElements = 1 << 17;
// All weights up to this size stay in a first-level cache while one strip of pixels passes by;
// larger ones are taken panel by panel, with all strips each.
constexpr size_t kWeightBytes = 16 << 10;
// Larger strides along rows do without classes of pixels.
constexpr int64_t kMostStride = 8;

// A convolution with its weights packed: out (rows, pixels) = weights (rows, terms) times what the
// pixels of a piece of an image see.
template <typename T>
class PlaneProduct {
 public:
  using Tile = PixelTile<T>;

  // `weights`: row-major. `reversed`: tap r of theirs is tap taps - 1 - r of the shape's.
  PlaneProduct(const PlaneShape& shape, const T* weights, int64_t rows, bool reversed)
      : shape_(shape),
        rows_(rows),
        terms_(shape.channels * shape.h.taps * shape.w.taps),
        panels_(ceil_div(rows, Tile::kRows)),
        panel_rows_(ceil_div(rows, panels_)),
        reversed_(reversed),
        packed_(static_cast<size_t>(panels_ * terms_ * Tile::kRows)) {
    for (int64_t p = 0; p < panels_; ++p) {
      const int64_t first = p * panel_rows_, count = std::min(panel_rows_, rows - first);
      pack_lines<Tile::kRows>(weights + first * terms_, terms_, static_cast<int>(count), terms_,
                              packed_.data() + p * terms_ * Tile::kRows);
    }
  }

  // Output rows per piece, equal ones rather than a short rest.
  int64_t rows_per_piece() const {
    const int64_t height = shape_.h.outputs;
    if (terms_ == 0) return height;
    const int64_t beyond = shape_.size(1) - shape_.size(0);  // that one more row takes
    const int64_t fitting = (kPlaneElements - shape_.size(0)) / std::max<int64_t>(1, beyond);
    return ceil_div(height, ceil_div(height, std::clamp<int64_t>(fitting, 1, height)));
  }

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
    T* planes = plane_space.get(static_cast<size_t>(size + Tile::kCols)).data();
    fill_planes(shape_, images + image * shape_.channels * shape_.h.size * shape_.w.size, begin,
                end, planes);
    std::fill(planes + size, planes + size + Tile::kCols, T(0));  // read in vain by the last tile
    const std::vector<int64_t> offsets = shape_.offsets(end - begin, reversed_);
    const auto tile = [&](int64_t p, int64_t at) {
      const int64_t first = p * panel_rows_;
      Tile()({.terms = terms_,
              .weights = packed_.data() + p * terms_ * Tile::kRows,
              .pixels = planes + at,
              .offsets = offsets.data(),
              .rows = static_cast<int>(std::min(panel_rows_, rows_ - first)),
              .cols = static_cast<int>(std::min<int64_t>(Tile::kCols, pixels - at)),
              .out = out + first * row_step + at,
              .row_step = row_step});
    };
    if (packed_.size() * sizeof(T) <= kWeightBytes) {
      for (int64_t at = 0; at < pixels; at += Tile::kCols) {
        for (int64_t p = 0; p < panels_; ++p) tile(p, at);
      }
    } else {
      for (int64_t p = 0; p < panels_; ++p) {
        for (int64_t at = 0; at < pixels; at += Tile::kCols) tile(p, at);
      }
    }
  }

 private:
  const PlaneShape shape_;
  const int64_t rows_, terms_, panels_, panel_rows_;
  const bool reversed_;
  std::vector<T> packed_;
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

template <typename T>
void direct_forward(const ConvArgs<T>& a) {
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

// dx of a convolution with a stride. An input pixel is seen through every stride-th tap alone, in
// both directions; the other terms of its sum are a weight times zero. Pixels that are seen through
// the same taps form a class: its image is a convolution of dy without gaps.
//
// A weight that is finite, times zero, changes no sum but one: -0 may become +0. The sums of a
// class are as the whole ones, therefore, unless they end in -0: those are formed again.
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
      std::vector<PlaneProduct<T>> products;
      for (const TapSet& w : cols_) {
        products.emplace_back(PlaneShape{s_.out_channels, h.axis, w.axis},
                              weights_by_input(a_, h, w).data(), s_.in_channels, true);
      }
      if (h.axis.outputs > 0) run_row_class(i, products);
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
      for (int64_t c = 0; c < s_.in_channels; ++c) {
        for (int64_t row = 0; row < rows; ++row) {
          const T* parts[kMostStride];
          bool doubtful = false;
          for (int64_t j = 0; j < s_.stride_w; ++j) {
            const int64_t width = cols_[static_cast<size_t>(j)].axis.outputs;
            parts[j] = sums + j * size + (c * rows + row) * width;
            doubtful |= has_negative_zero(parts[j], width);
          }
          const int64_t h = first_row + (begin + row) * s_.stride_h;
          T* out = a_.out + ((image * s_.in_channels + c) * s_.in_height + h) * s_.in_width;
          spread_row(parts, s_.stride_w, s_.in_width, out);
          if (doubtful) repair(image, c, h, out);
        }
      }
    });
  }

  // Forms sums of a row that are -0 with all their terms.
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
void direct_backward_input(const ConvArgs<T>& a) {
  const ConvShape& s = a.shape;
  const int64_t weights = s.out_channels * s.in_channels * s.kernel_height * s.kernel_width;
  const bool strided = std::max(s.stride_h, s.stride_w) > 1;
  if (strided && s.stride_w <= kMostStride &&
      std::all_of(a.w, a.w + weights, [](T w) { return std::isfinite(w); })) {
    return StridedInputGradient<T>(a).run();
  }
  const TapSet all_h{0, 1, s.kernel_height, {}}, all_w{0, 1, s.kernel_width, {}};
  multiply_planes(backward_planes(s), a.dy, s.batch, weights_by_input(a, all_h, all_w).data(),
                  s.in_channels, true, a.out);
}

// The weight gradient of kTaps taps per row of the kernel at once: all of them, or one.
template <typename T, int kTaps>
class WeightGradient {
 public:
  explicit WeightGradient(const ConvArgs<T>& a)
      : a_(a),
        s_(a.shape),
        height_(extent(s_.in_height + s_.pad_h, s_.out_height, s_.stride_h, s_.kernel_height,
                       s_.dilation_h)),
        width_(extent(s_.in_width + s_.pad_w, s_.out_width, s_.stride_w, s_.kernel_width,
                      s_.dilation_w)),
        image_size_(s_.in_channels * height_ * width_),
        pixels_(s_.out_height * s_.out_width) {
    const int64_t lanes = hn::MaxLanes(hn::ScalableTag<T>());
    for (int64_t o = 0; o < s_.out_channels; o += 2 * lanes) {
      const int64_t channels = std::min(2 * lanes, s_.out_channels - o);
      panels_.push_back({o, channels, channels > lanes ? 2 * lanes : lanes, padded_channels_});
      padded_channels_ += panels_.back().padded;
    }
    for (int64_t c = 0; c < s_.in_channels; ++c) {
      for (int64_t r = 0; r < s_.kernel_height; ++r) {
        for (int64_t t = 0; t < s_.kernel_width; t += kTaps) {
          offsets_.push_back((c * height_ + r * s_.dilation_h) * width_ + t * s_.dilation_w);
        }
      }
    }
    groups_ = static_cast<int64_t>(offsets_.size());
    for (size_t p = 0; p < panels_.size(); ++p) {
      const bool two = panels_[p].padded > lanes;
      const int64_t most =
          two ? WeightTile<T, kTaps, 2>::kGroups : WeightTile<T, kTaps, 1>::kGroups;
      const int64_t step = ceil_div(groups_, ceil_div(groups_, most));
      for (int64_t g = 0; g < groups_; g += step) {
        tiles_.push_back({p, g, std::min(step, groups_ - g), two});
      }
    }
  }

  void run() {
    static thread_local Workspace<T> image_space, dy_space, sum_space;
    const int64_t dy_size = padded_channels_ * pixels_;
    const int64_t bytes = (image_size_ + dy_size) * static_cast<int64_t>(sizeof(T));
    const int64_t at_once = std::clamp<int64_t>(kBatchBytes / bytes, 1, s_.batch);
    T* const images = image_space.get(static_cast<size_t>(at_once * image_size_)).data();
    T* const dys = dy_space.get(static_cast<size_t>(at_once * dy_size)).data();
    sums_ = sum_space.get(static_cast<size_t>(groups_ * kTaps * padded_channels_)).data();
    for (int64_t n = 0; n < s_.batch; n += at_once) {
      const int64_t count = std::min(at_once, s_.batch - n);
      parallel_for(count, [&](int64_t i) {
        pad_image(n + i, images + i * image_size_);
        for (const Panel& panel : panels_) {
          T* const dy = dys + i * dy_size + panel.at * pixels_;
          turn_dy(panel, a_.dy + ((n + i) * s_.out_channels + panel.first) * pixels_, dy);
        }
      });
      parallel_for(static_cast<int64_t>(tiles_.size()), [&](int64_t tile) {
        for (int64_t i = 0; i < count; ++i) {
          add_image(tiles_[static_cast<size_t>(tile)], images + i * image_size_, dys + i * dy_size,
                    n + i > 0);
        }
      });
    }
    write();
  }

 private:
  struct Panel {
    int64_t first, channels, padded, at;  // output channels; `at`: padded ones before it
  };
  struct Tile {
    size_t panel;
    int64_t first, groups;
    bool two_vectors;
  };
  // Images that are made ready together: a second-level cache of 1 MB.
  static constexpr int64_t kBatchBytes = 1 << 20;

  // Of the padded image: what lies before the padding behind, or as far as the last window reaches,
  // which is further where more is padded behind than before.
  static int64_t extent(int64_t before, int64_t outputs, int64_t stride, int64_t taps,
                        int64_t dilation) {
    return std::max(before, (outputs - 1) * stride + (taps - 1) * dilation + 1);
  }

  void pad_image(int64_t n, T* out) const {
    const int64_t behind_h = height_ - s_.pad_h - s_.in_height;
    const int64_t behind_w = width_ - s_.pad_w - s_.in_width;
    const T* in = a_.x + n * s_.in_channels * s_.in_height * s_.in_width;
    for (int64_t c = 0; c < s_.in_channels; ++c) {
      out = std::fill_n(out, s_.pad_h * width_, T(0));
      for (int64_t h = 0; h < s_.in_height; ++h, in += s_.in_width) {
        out = std::fill_n(out, s_.pad_w, T(0));
        for (int64_t w = 0; w < s_.in_width; ++w) out[w] = in[w];
        out = std::fill_n(out + s_.in_width, behind_w, T(0));
      }
      out = std::fill_n(out, behind_h * width_, T(0));
    }
  }

  // (channels, pixels) to (pixels, padded channels).
  void turn_dy(const Panel& panel, const T* in, T* out) const {
    constexpr int kLanes = static_cast<int>(hn::MaxLanes(hn::ScalableTag<T>()));
    const int channels = static_cast<int>(panel.channels);
    if (panel.padded == kLanes) {
      pack_lines<kLanes>(in, pixels_, channels, pixels_, out);
    } else {
      pack_lines<2 * kLanes>(in, pixels_, channels, pixels_, out);
    }
  }

  T* tile_sums(const Tile& tile) const {
    const Panel& panel = panels_[tile.panel];
    return sums_ + groups_ * kTaps * panel.at + tile.first * kTaps * panel.padded;
  }

  void add_image(const Tile& tile, const T* image, const T* dy, bool begun) const {
    const WeightTileArgs<T> args{.image = image,
                                 .offsets = offsets_.data() + tile.first,
                                 .groups = static_cast<int>(tile.groups),
                                 .rows = s_.out_height,
                                 .cols = s_.out_width,
                                 .row_step = s_.stride_h * width_,
                                 .col_step = s_.stride_w,
                                 .dy = dy + panels_[tile.panel].at * pixels_,
                                 .sums = tile_sums(tile),
                                 .begun = begun};
    if (tile.two_vectors) {
      WeightTile<T, kTaps, 2>()(args);
    } else {
      WeightTile<T, kTaps, 1>()(args);
    }
  }

  void write() const {
    const int64_t columns = groups_ * kTaps;
    for (const Panel& panel : panels_) {
      const T* sums = sums_ + columns * panel.at;
      for (int64_t o = 0; o < panel.channels; ++o) {
        T* out = a_.out + (panel.first + o) * columns;
        for (int64_t i = 0; i < columns; ++i) {
          const T sum = sums[i * panel.padded + o];
          out[i] = sum == sum ? sum : std::numeric_limits<T>::quiet_NaN();
        }
      }
    }
  }

  const ConvArgs<T>& a_;
  const ConvShape& s_;
  const int64_t height_, width_;  // padded
  const int64_t image_size_, pixels_;
  int64_t padded_channels_ = 0, groups_ = 0;
  std::vector<Panel> panels_;
  std::vector<Tile> tiles_;
  std::vector<int64_t> offsets_;
  T* sums_ = nullptr;
};

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
