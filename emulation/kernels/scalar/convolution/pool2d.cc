// Max pooling as plain loops, one plane at a time.
#include "emulation/kernels/scalar/convolution/pool2d.h"

#include <algorithm>

#include "emulation/accumulator/fast_round.h"
#include "src/core/chunks.h"

namespace lockstep {
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
    for (int64_t plane = begin; plane < end; ++plane) {
      T* dx_plane = dx + plane * in_plane;
      for (int64_t i = plane * out_plane; i < (plane + 1) * out_plane; ++i) {
        T& target = dx_plane[argmax[i]];
        target = canonical_nan(target + dy[i]);
      }
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
