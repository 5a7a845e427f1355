// Max pooling as plain loops, one plane at a time.
#include "emulation/scalar/pool2d.h"

#include <algorithm>

#include "emulation/fast_round.h"
#include "emulation/scalar/chunks.h"

namespace lockstep {
namespace {

// The index (h * W + w) of the first maximum, or of the first NaN, in one window.
template <typename T>
int32_t window_argmax(const PoolShape& s, const T* plane, int64_t p, int64_t q) {
  const int64_t h0 = p * s.stride_h - s.pad_h, w0 = q * s.stride_w - s.pad_w;
  const int64_t h_begin = std::max<int64_t>(h0, 0), w_begin = std::max<int64_t>(w0, 0);
  const int64_t h_end = std::min(h0 + s.kernel_h, s.in_height);
  const int64_t w_end = std::min(w0 + s.kernel_w, s.in_width);
  int64_t best = h_begin * s.in_width + w_begin;
  T best_value = plane[best];
  for (int64_t h = h_begin; h < h_end; ++h) {
    for (int64_t i = h * s.in_width + w_begin; i < h * s.in_width + w_end; ++i) {
      // Larger, or a NaN, unless a NaN was found before. Single bits and selections instead of
      // branches, which would be mispredicted at every other window.
      const bool wins = !(plane[i] <= best_value) & (best_value == best_value);
      best = wins ? i : best;
      best_value = wins ? plane[i] : best_value;
    }
  }
  return static_cast<int32_t>(best);
}

}  // namespace

template <typename T>
void scalar_max_pool2d(const PoolShape& s, const T* x, T* y, int32_t* argmax) {
  const int64_t in_plane = s.in_height * s.in_width, out_plane = s.out_height * s.out_width;
  parallel_chunks(s.batch * s.channels, row_grain(in_plane), [&](int64_t begin, int64_t end) {
    for (int64_t plane = begin; plane < end; ++plane) {
      const T* x_plane = x + plane * in_plane;
      int64_t out = plane * out_plane;
      for (int64_t p = 0; p < s.out_height; ++p) {
        for (int64_t q = 0; q < s.out_width; ++q, ++out) {
          argmax[out] = window_argmax(s, x_plane, p, q);
          y[out] = canonical_nan(x_plane[argmax[out]]);
        }
      }
    }
  });
}

template <typename T>
void scalar_max_pool2d_backward(const PoolShape& s, const T* dy, const int32_t* argmax, T* dx) {
  const int64_t in_plane = s.in_height * s.in_width, out_plane = s.out_height * s.out_width;
  parallel_chunks(s.batch * s.channels, row_grain(in_plane), [&](int64_t begin, int64_t end) {
    std::fill(dx + begin * in_plane, dx + end * in_plane, T(0));
    for (int64_t i = begin * out_plane; i < end * out_plane; ++i) {
      T& target = dx[i / out_plane * in_plane + argmax[i]];
      target = canonical_nan(target + dy[i]);
    }
  });
}

#define LOCKSTEP_INSTANTIATE(T)                                              \
  template void scalar_max_pool2d(const PoolShape&, const T*, T*, int32_t*); \
  template void scalar_max_pool2d_backward(const PoolShape&, const T*, const int32_t*, T*);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep
