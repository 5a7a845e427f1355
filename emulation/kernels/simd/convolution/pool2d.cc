// Neighbouring windows are lanes: every lane walks its window in scan order, like the scalar loop.
// Windows that extend over the left or right edge run the scalar loop.
#include "emulation/kernels/simd/convolution/pool2d.h"

#include <algorithm>

#include "emulation/accumulator/fast_round.h"
#include "emulation/kernels/scalar/convolution/pool2d.h"
#include "emulation/kernels/simd/targets.h"
#include "src/core/chunks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "emulation/kernels/simd/convolution/pool2d.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "emulation/kernels/simd/rounding/narrow-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep {
namespace HWY_NAMESPACE {
#if LOCKSTEP_SIMD_TARGET

// The elements that a vector of neighbouring windows reads through one tap.
template <int kStride, class D>
HWY_INLINE hn::Vec<D> load_tap(D d, const float* from) {
  if constexpr (kStride == 1) {
    return hn::LoadU(d, from);
  } else {
    hn::Vec<D> even, odd;
    hn::LoadInterleaved2(d, from, even, odd);
    return even;
  }
}

// Windows [q, q + lanes) of row p, all inside the image along the row.
template <int kStride, class D>
HWY_INLINE void pool_vector(D d, const PoolShape& s, const float* plane, int64_t p, int64_t q,
                            float* y, int32_t* argmax) {
  const hn::RebindToSigned<D> di;
  const auto columns = hn::Mul(hn::Iota(di, 0), hn::Set(di, kStride));
  auto best = hn::Zero(d);
  auto index = hn::Zero(di);
  bool first = true;
  for (int64_t r = 0; r < s.kernel_h; ++r) {
    const int64_t h = p * s.stride_h - s.pad_h + r * s.dilation_h;
    if (h < 0 || h >= s.in_height) continue;
    const int64_t begin = h * s.in_width + q * kStride - s.pad_w;
    for (int64_t t = 0; t < s.kernel_w; ++t) {
      const int64_t at = begin + t * s.dilation_w;
      const auto x = load_tap<kStride>(d, plane + at);
      const auto place = hn::Add(columns, hn::Set(di, static_cast<int32_t>(at)));
      if (first) {
        best = x;
        index = place;
        first = false;
        continue;
      }
      // Larger, or a NaN, unless a NaN was found before.
      const auto wins = hn::AndNot(hn::Le(x, best), hn::Eq(best, best));
      best = hn::IfThenElse(wins, x, best);
      index = hn::IfThenElse(hn::RebindMask(di, wins), place, index);
    }
  }
  hn::StoreU(canonical(d, best), d, y + q);
  hn::StoreU(index, di, argmax + q);
}

// Windows [q, end) of row p as far as vectors of D's width reach; the last vector overlaps the one
// before it. Returns the first window that is left. `room`: elements from `plane` to the end of the
// images; a vector of every other element must not read beyond them.
template <int kStride, class D>
HWY_INLINE int64_t pool_row(D d, const PoolShape& s, const float* plane, int64_t room, int64_t p,
                            int64_t q, int64_t begin, int64_t end, float* y, int32_t* argmax) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t last_tap = p * s.stride_h - s.pad_h + (s.kernel_h - 1) * s.dilation_h;
  const int64_t last_read =
      std::min(last_tap, s.in_height - 1) * s.in_width - s.pad_w + (s.kernel_w - 1) * s.dilation_w;
  const auto fits = [&](int64_t first) {
    return first + lanes <= end && last_read + (first + lanes) * kStride <= room;
  };
  for (; fits(q); q += lanes) pool_vector<kStride>(d, s, plane, p, q, y, argmax);
  const int64_t overlapping = end - lanes;
  if (q < end && overlapping >= begin && fits(overlapping)) {
    pool_vector<kStride>(d, s, plane, p, overlapping, y, argmax);
    return end;
  }
  return q;
}

template <int kStride>
void pool_plane(const PoolShape& s, const float* plane, int64_t room, float* y, int32_t* argmax) {
  const int64_t span = (s.kernel_w - 1) * s.dilation_w;
  // The windows that extend over neither edge: [begin, end).
  const int64_t begin = std::min((s.pad_w + kStride - 1) / kStride, s.out_width);
  const int64_t last = s.in_width - 1 - span + s.pad_w;
  const int64_t end = last < 0 ? begin : std::clamp(last / kStride + 1, begin, s.out_width);
  for (int64_t p = 0; p < s.out_height; ++p, y += s.out_width, argmax += s.out_width) {
    int64_t q = 0;
    const auto scalar_until = [&](int64_t stop) {
      for (; q < stop; ++q) {
        argmax[q] = window_argmax(s, plane, p, q);
        y[q] = canonical_nan(plane[argmax[q]]);
      }
    };
    scalar_until(begin);
    q = pool_row<kStride>(FloatTag(), s, plane, room, p, q, begin, end, y, argmax);
    q = pool_row<kStride>(hn::CappedTag<float, 8>(), s, plane, room, p, q, begin, end, y, argmax);
    q = pool_row<kStride>(hn::CappedTag<float, 4>(), s, plane, room, p, q, begin, end, y, argmax);
    scalar_until(s.out_width);
  }
}

void pool_planes(const PoolShape& s, const float* x, float* y, int32_t* argmax, int64_t begin,
                 int64_t end) {
  const int64_t in_plane = s.in_height * s.in_width, out_plane = s.out_height * s.out_width;
  for (int64_t plane = begin; plane < end; ++plane) {
    const auto pool = s.stride_w == 1 ? pool_plane<1> : pool_plane<2>;
    const int64_t room = (s.batch * s.channels - plane) * in_plane;
    pool(s, x + plane * in_plane, room, y + plane * out_plane, argmax + plane * out_plane);
  }
}

#endif  // LOCKSTEP_SIMD_TARGET
}  // namespace HWY_NAMESPACE
}  // namespace lockstep
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep {

namespace {

using PoolPlanes = void (*)(const PoolShape&, const float*, float*, int32_t*, int64_t, int64_t);

template <PoolPlanes kPlanes>
void max_pool2d(const PoolShape& s, const float* x, float* y, int32_t* argmax) {
  constexpr int64_t kWidestStride = 2;
  if (s.stride_w > kWidestStride) return scalar_max_pool2d(s, x, y, argmax);
  parallel_chunks(s.batch * s.channels, row_grain(s.in_height * s.in_width),
                  [&](int64_t begin, int64_t end) { kPlanes(s, x, y, argmax, begin, end); });
}

}  // namespace

void use_simd_max_pool2d(KernelSet& set, SimdTarget target) {
  set.f32.max_pool2d = target == SimdTarget::kAvx2 ? max_pool2d<N_AVX2::pool_planes>
                                                   : max_pool2d<N_AVX3::pool_planes>;
}

}  // namespace lockstep
#endif  // HWY_ONCE
