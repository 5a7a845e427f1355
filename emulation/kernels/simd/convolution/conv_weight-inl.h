// The weight gradient of a convolution as tiles of taps and output channels, which go over all
// images in order. Included once per instruction set.
#if defined(LOCKSTEP_CONV_WEIGHT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_CONV_WEIGHT_INL_H_
#undef LOCKSTEP_CONV_WEIGHT_INL_H_
#else
#define LOCKSTEP_CONV_WEIGHT_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "emulation/kernels/args/conv_args.h"
#include "emulation/kernels/scalar/convolution/conv2d.h"
#include "emulation/kernels/simd/convolution/conv_fill-inl.h"
#include "emulation/kernels/simd/convolution/conv_tile-inl.h"
#include "emulation/kernels/simd/products/gemm_pack-inl.h"
#include "emulation/kernels/simd/products/gemm_plan.h"
#include "emulation/kernels/simd/targets.h"
#include "src/core/parallel.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET
namespace hn = hwy::HWY_NAMESPACE;

// The weight gradient of kTaps taps per row of the kernel at once: all taps, or one.
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
  // Images that are prepared together: a second-level cache of 1 MB.
  static constexpr int64_t kBatchBytes = 1 << 20;

  // The extent of the padded image: up to the end of the padding, or up to the end of the last
  // window, which is further if the end has more padding than the start.
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
        copy_run(in, s_.in_width, out);
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

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();
#endif
