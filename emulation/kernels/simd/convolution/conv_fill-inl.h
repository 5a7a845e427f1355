// Fills the planes of emulation/kernels/simd/convolution/conv_planes.h from an image. Included once
// per instruction set.
#if defined(LOCKSTEP_CONV_FILL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_CONV_FILL_INL_H_
#undef LOCKSTEP_CONV_FILL_INL_H_
#else
#define LOCKSTEP_CONV_FILL_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "emulation/kernels/simd/convolution/conv_planes.h"
#include "emulation/kernels/simd/products/gemm_plan.h"
#include "emulation/kernels/simd/targets.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET
namespace hn = hwy::HWY_NAMESPACE;

// A call of memcpy would cost more than the few vectors of a row.
template <typename T>
HWY_INLINE void copy_run(const T* in, int64_t count, T* out) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(hn::LoadU(d, in + i), d, out + i);
  if (i == count) return;
  const auto rest = hn::FirstN(d, static_cast<size_t>(count - i));
  hn::BlendedStore(hn::MaskedLoad(rest, d, in + i), rest, d, out + i);
}

// The pixels at places 0, step, 2 step, ... of a row, then those at 1, 1 + step, ...; each
// remainder at out + remainder * out_step.
template <typename T>
void split_row(const T* in, int64_t size, int64_t step, T* out, int64_t out_step) {
  int64_t i = 0;
  if (step == 2) {
    const hn::CappedTag<T, 8> d;
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    for (; i + 2 * lanes <= size; i += 2 * lanes) {
      const auto low = hn::LoadU(d, in + i), high = hn::LoadU(d, in + i + lanes);
      hn::StoreU(hn::ConcatEven(d, high, low), d, out + i / 2);
      hn::StoreU(hn::ConcatOdd(d, high, low), d, out + out_step + i / 2);
    }
  }
  for (; i < size; ++i) out[i % step * out_step + i / step] = in[i];
}

// Writes one row of the plane of each tap, plane_size apart: the pixels of image row `in` that
// outputs 0, 1, ... read, or zeros without `in`.
template <typename T>
class PlaneRows {
 public:
  explicit PlaneRows(const PlaneAxis& w) : w_(w), part_size_(ceil_div(w.size, w.stride)) {
    static thread_local Workspace<T> space;
    parts_ = space.get(static_cast<size_t>(part_size_ * w.stride)).data();
    for (int64_t s = 0; s < w.taps; ++s) {
      const int64_t first = s * w.dilation - w.pad;
      int64_t part = first % w.stride, shift = first / w.stride;
      if (part < 0) part += w.stride, --shift;
      const int64_t size = (w.size - part + w.stride - 1) / w.stride;
      const int64_t begin = std::clamp<int64_t>(-shift, 0, w.outputs);
      const int64_t end = std::clamp<int64_t>(size - shift, begin, w.outputs);
      runs_.push_back({part * part_size_ + begin + shift, begin, end});
    }
  }

  void write(const T* in, T* out, int64_t plane_size) const {
    if (in == nullptr || w_.up != 1) {
      for (int64_t s = 0; s < w_.taps; ++s) write_slowly(in, s, out + s * plane_size);
      return;
    }
    const T* from = in;
    if (w_.stride > 1) {
      split_row(in, w_.size, w_.stride, parts_, part_size_);
      from = parts_;
    }
    for (const Run& run : runs_) {
      for (int64_t q = 0; q < run.begin; ++q) out[q] = T(0);
      if (run.begin < run.end) copy_run(from + run.from, run.end - run.begin, out + run.begin);
      for (int64_t q = run.end; q < w_.outputs; ++q) out[q] = T(0);
      out += plane_size;
    }
  }

 private:
  void write_slowly(const T* in, int64_t s, T* out) const {
    for (int64_t q = 0; q < w_.outputs; ++q) {
      const int64_t pixel = in == nullptr ? -1 : w_.pixel(q * w_.stride + s * w_.dilation - w_.pad);
      out[q] = pixel < 0 ? T(0) : in[pixel];
    }
  }

  // Outputs [begin, end) read pixels of the image, in one run; `from`: its first pixel, in the row
  // split by remainders.
  struct Run {
    int64_t from, begin, end;
  };
  const PlaneAxis& w_;
  const int64_t part_size_;
  T* parts_;
  std::vector<Run> runs_;
};

// A run of rows of `width` is cut into vectors from a row's start on. The masks mark the lanes with
// pixels `left` or more from their row's start and `right` or more from its end. Vectors repeat.
template <typename T>
class RowMasks {
 public:
  using D = hn::ScalableTag<T>;
  static constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(D()));
  // Whole rows per vector, or whole vectors per row, and only a few.
  static bool fit(int64_t width) {
    return kLanes % width == 0 || (width % kLanes == 0 && width / kLanes <= kMost);
  }

  RowMasks(int64_t width, int64_t left, int64_t right)
      : count_(std::max<int64_t>(1, width / kLanes)) {
    const D d;
    for (int64_t v = 0; v < count_; ++v) {
      alignas(64) T inside[kLanes];
      for (int64_t l = 0; l < kLanes; ++l) {
        const int64_t q = (v * kLanes + l) % width;
        inside[l] = q >= left && q < width - right ? T(1) : T(0);
      }
      masks_[v] = hn::Ne(hn::Load(d, inside), hn::Zero(d));
    }
  }

  // out[i] = in[i] where inside, otherwise 0. Reads nothing else.
  void copy(const T* in, int64_t size, T* out) const {
    const D d;
    int64_t i = 0;
    for (int64_t v = 0; i + kLanes <= size; i += kLanes, v = v + 1 == count_ ? 0 : v + 1) {
      hn::StoreU(hn::MaskedLoad(masks_[v], d, in + i), d, out + i);
    }
    if (i == size) return;
    const auto rest = hn::FirstN(d, static_cast<size_t>(size - i));
    hn::BlendedStore(hn::MaskedLoad(hn::And(rest, masks_[0]), d, in + i), rest, d, out + i);
  }

 private:
  static constexpr int64_t kMost = 8;
  int64_t count_;
  hn::Mask<D> masks_[kMost];
};

// Planes whose rows are as long as the image's: copy(from, size, out) of all rows at once.
template <typename T, typename Copy>
HWY_INLINE void fill_plane_at_once(const PlaneShape& shape, const T* plane, int64_t begin,
                                   int64_t rows, T* out, Copy copy) {
  const PlaneAxis& h = shape.h;
  const int64_t width = shape.w.outputs;
  const int64_t above = std::clamp<int64_t>(h.pad - begin, 0, rows);
  const int64_t below = std::clamp<int64_t>(h.size + h.pad - begin, above, rows);
  std::fill(out, out + above * width, T(0));
  std::fill(out + below * width, out + rows * width, T(0));
  copy(plane + (begin + above - h.pad) * width, (below - above) * width, out + above * width);
}

// The planes of one image (channels, h.size, w.size) for output rows [begin, end).
template <typename T>
void fill_planes(const PlaneShape& shape, const T* image, int64_t begin, int64_t end, T* out) {
  const PlaneAxis &h = shape.h, &w = shape.w;
  const int64_t rows = shape.plane_rows(end - begin), plane_size = rows * w.outputs;
  if (shape.has_one_copy()) {
    for (int64_t c = 0; c < shape.channels; ++c) {
      fill_plane_at_once(shape, image + c * h.size * w.size, begin, rows, out + c * plane_size,
                         copy_run<T>);
    }
    return;
  }
  if (shape.keeps_rows() && RowMasks<T>::fit(w.outputs)) {
    for (int64_t s = 0; s < w.taps; ++s) {
      const int64_t shift = std::clamp<int64_t>(s * w.dilation - w.pad, -w.size, w.size);
      const RowMasks<T> masks(w.size, std::max<int64_t>(0, -shift), std::max<int64_t>(0, shift));
      const auto copy_shifted = [&](const T* from, int64_t size, T* to) {
        masks.copy(from + shift, size, to);
      };
      for (int64_t c = 0; c < shape.channels; ++c) {
        fill_plane_at_once(shape, image + c * h.size * w.size, begin, rows,
                           out + (c * w.taps + s) * plane_size, copy_shifted);
      }
    }
    return;
  }
  if (w.outputs == 1 && w.size == 1 && w.taps == 1 && w.pad == 0) {  // an image of one column
    for (int64_t c = 0; c < shape.channels; ++c, image += h.size) {
      for (int64_t remainder = 0; remainder < shape.classes(); ++remainder) {
        int64_t position = begin * h.stride + remainder - h.pad;
        for (int64_t row = 0; row < rows; ++row, position += h.stride) {
          const int64_t pixel = h.pixel(position);
          *out++ = pixel < 0 ? T(0) : image[pixel];
        }
      }
    }
    return;
  }
  const PlaneRows<T> plane_rows(w);
  for (int64_t c = 0; c < shape.channels; ++c, image += h.size * w.size) {
    for (int64_t remainder = 0; remainder < shape.classes(); ++remainder) {
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t pixel = h.pixel((begin + row) * h.stride + remainder - h.pad);
        plane_rows.write(pixel < 0 ? nullptr : image + pixel * w.size, out + row * w.outputs,
                         plane_size);
      }
      out += w.taps * plane_size;
    }
  }
}

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();
#endif
