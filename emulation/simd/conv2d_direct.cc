// Work is cut into (image, rows of pixels), or for the weight gradient into tiles of its taps and
// output channels, which pass over all images in order.
#include "emulation/simd/conv2d_direct.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "emulation/simd/conv_planes.h"
#include "emulation/simd/gemm_plan.h"
#include "emulation/simd/targets.h"
#include "src/core/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "emulation/simd/conv2d_direct.cc"
#include <hwy/foreach_target.h>

#include <hwy/highway.h>
#include "emulation/simd/conv_tile-inl.h"
#include "emulation/simd/gemm_pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET

// Elements of planes per piece of an image: half of a 1 MB second-level cache in floats.
constexpr int64_t kPlaneElements = 1 << 17;
// All weights up to this size stay in a first-level cache while one strip of pixels passes by;
// larger ones are taken panel by panel, with all strips each.
constexpr int64_t kWeightBytes = 16 << 10;

// out[image] (rows, pixels) = weights (rows, terms) times what the pixels see; `weights` row-major.
template <typename T>
void multiply_planes(const PlaneShape& shape, const T* images, int64_t batch, const T* weights,
                     int64_t rows, bool reversed, T* out) {
  using Tile = PixelTile<T>;
  const int64_t terms = shape.channels * shape.h.taps * shape.w.taps;
  const int64_t panels = ceil_div(rows, Tile::kRows), panel_rows = ceil_div(rows, panels);
  static thread_local Workspace<T> packed_space;
  T* const packed = packed_space.get(static_cast<size_t>(panels * terms * Tile::kRows)).data();
  for (int64_t p = 0; p < panels; ++p) {
    const int64_t first = p * panel_rows, count = std::min(panel_rows, rows - first);
    pack_lines<Tile::kRows>(weights + first * terms, terms, static_cast<int>(count), terms,
                            packed + p * terms * Tile::kRows);
  }
  const int64_t height = shape.h.outputs, width = shape.w.outputs;
  const int64_t beyond = shape.size(1) - shape.size(0);  // that one more row takes
  const int64_t fitting = (kPlaneElements - shape.size(0)) / std::max<int64_t>(1, beyond);
  const int64_t per_piece =
      ceil_div(height, ceil_div(height, std::clamp<int64_t>(fitting, 1, height)));
  const int64_t pieces = ceil_div(height, per_piece);
  const int64_t image_size = shape.channels * shape.h.size * shape.w.size;
  parallel_for(batch * pieces, [&](int64_t task) {
    static thread_local Workspace<T> plane_space;
    const int64_t image = task / pieces, begin = task % pieces * per_piece;
    const int64_t end = std::min(height, begin + per_piece), pixels = (end - begin) * width;
    const int64_t size = shape.size(end - begin);
    T* planes = plane_space.get(static_cast<size_t>(size + Tile::kCols)).data();
    fill_planes(shape, images + image * image_size, begin, end, planes);
    std::fill(planes + size, planes + size + Tile::kCols, T(0));  // read in vain by the last tile
    std::vector<int64_t> offsets = shape.offsets(end - begin);
    if (reversed) {
      const int64_t taps = shape.h.taps * shape.w.taps;
      for (int64_t c = 0; c < shape.channels; ++c) {
        std::reverse(offsets.begin() + c * taps, offsets.begin() + (c + 1) * taps);
      }
    }
    T* const piece = out + image * rows * height * width + begin * width;
    const auto tile = [&](int64_t p, int64_t at) {
      const int64_t first = p * panel_rows;
      Tile()({.terms = terms,
              .weights = packed + p * terms * Tile::kRows,
              .pixels = planes + at,
              .offsets = offsets.data(),
              .rows = static_cast<int>(std::min(panel_rows, rows - first)),
              .cols = static_cast<int>(std::min<int64_t>(Tile::kCols, pixels - at)),
              .out = piece + first * height * width + at,
              .row_step = height * width});
    };
    if (panels * terms * Tile::kRows * static_cast<int64_t>(sizeof(T)) <= kWeightBytes) {
      for (int64_t at = 0; at < pixels; at += Tile::kCols) {
        for (int64_t p = 0; p < panels; ++p) tile(p, at);
      }
    } else {
      for (int64_t p = 0; p < panels; ++p) {
        for (int64_t at = 0; at < pixels; at += Tile::kCols) tile(p, at);
      }
    }
  });
}

template <typename T>
void direct_forward(const ConvArgs<T>& a) {
  multiply_planes(forward_planes(a.shape), a.x, a.shape.batch, a.w, a.shape.out_channels, false,
                  a.out);
}

template <typename T>
void direct_backward_input(const ConvArgs<T>& a) {
  const ConvShape& s = a.shape;
  const int64_t taps = s.kernel_height * s.kernel_width, terms = s.out_channels * taps;
  std::vector<T> w(static_cast<size_t>(s.in_channels * terms));  // (C, O, R, S)
  for (int64_t o = 0; o < s.out_channels; ++o) {
    for (int64_t c = 0; c < s.in_channels; ++c) {
      const T* from = a.w + (o * s.in_channels + c) * taps;
      std::copy(from, from + taps, w.begin() + c * terms + o * taps);
    }
  }
  multiply_planes(backward_planes(s), a.dy, s.batch, w.data(), s.in_channels, true, a.out);
}

// The weight gradient of kTaps taps per row of the kernel at once: all of them, or one.
template <typename T, int kTaps>
class WeightGradient {
 public:
  explicit WeightGradient(const ConvArgs<T>& a)
      : a_(a),
        s_(a.shape),
        height_(s_.in_height + 2 * s_.pad_h),
        width_(s_.in_width + 2 * s_.pad_w),
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

  void pad_image(int64_t n, T* out) const {
    const T* in = a_.x + n * s_.in_channels * s_.in_height * s_.in_width;
    for (int64_t c = 0; c < s_.in_channels; ++c) {
      out = std::fill_n(out, s_.pad_h * width_, T(0));
      for (int64_t h = 0; h < s_.in_height; ++h, in += s_.in_width) {
        out = std::fill_n(out, s_.pad_w, T(0));
        for (int64_t w = 0; w < s_.in_width; ++w) out[w] = in[w];
        out = std::fill_n(out + s_.in_width, s_.pad_w, T(0));
      }
      out = std::fill_n(out, s_.pad_h * width_, T(0));
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
