// See upsample2d.h. Planes are spread over the threads.
#include "emulation/kernels/scalar/convolution/upsample2d.h"

#include <algorithm>

#include "emulation/kernels/scalar/products/chain_add.h"
#include "src/core/chunks.h"

namespace lockstep {
namespace {

// body(input plane, output plane) for every plane.
template <typename In, typename Out, typename Body>
void for_planes(const UpsampleShape& shape, int64_t out_plane, In* in, Out* out, Body body) {
  const int64_t in_plane = shape.in_height * shape.in_width;
  parallel_chunks(shape.planes, row_grain(std::max(in_plane, out_plane)),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t plane = begin; plane < end; ++plane) {
                      body(in + plane * in_plane, out + plane * out_plane);
                    }
                  });
}

template <typename Axis>
int64_t plane_size(const Axis& rows, const Axis& columns) {
  return static_cast<int64_t>(rows.size() * columns.size());
}

}  // namespace

template <typename T>
void upsample_nearest2d(const UpsampleShape& shape, const std::vector<int64_t>& rows,
                        const std::vector<int64_t>& columns, const T* x, T* y) {
  for_planes(shape, plane_size(rows, columns), x, y, [&](const T* in, T* out) {
    for (const int64_t row : rows) {
      const T* line = in + row * shape.in_width;
      for (const int64_t column : columns) *out++ = line[column];
    }
  });
}

template <typename T>
void upsample_nearest2d_backward(const UpsampleShape& shape, const std::vector<int64_t>& rows,
                                 const std::vector<int64_t>& columns, const T* dy, T* dx,
                                 const Accumulator& accumulator) {
  std::fill_n(dx, shape.planes * shape.in_height * shape.in_width, T(0));
  with_chain_add<T>(accumulator, [&](auto add) {
    for_planes(shape, plane_size(rows, columns), dx, dy, [&](T* in, const T* out) {
      for (const int64_t row : rows) {
        T* line = in + row * shape.in_width;
        for (const int64_t column : columns) line[column] = add(line[column], *out++);
      }
    });
  });
}

template <typename T>
void upsample_bilinear2d(const UpsampleShape& shape, const std::vector<AxisSample<T>>& rows,
                         const std::vector<AxisSample<T>>& columns, const T* x, T* y) {
  for_planes(shape, plane_size(rows, columns), x, y, [&](const T* in, T* out) {
    for (const AxisSample<T>& row : rows) {
      const T *low = in + row.low * shape.in_width, *high = in + row.high * shape.in_width;
      for (const AxisSample<T>& c : columns) {
        const T above = c.low_weight * low[c.low] + c.high_weight * low[c.high];
        const T below = c.low_weight * high[c.low] + c.high_weight * high[c.high];
        *out++ = canonical_nan(row.low_weight * above + row.high_weight * below);
      }
    }
  });
}

template <typename T>
void upsample_bilinear2d_backward(const UpsampleShape& shape,
                                  const std::vector<AxisSample<T>>& rows,
                                  const std::vector<AxisSample<T>>& columns, const T* dy, T* dx,
                                  const Accumulator& accumulator) {
  std::fill_n(dx, shape.planes * shape.in_height * shape.in_width, T(0));
  with_chain_add<T>(accumulator, [&](auto add) {
    for_planes(shape, plane_size(rows, columns), dx, dy, [&](T* in, const T* out) {
      for (const AxisSample<T>& row : rows) {
        T *low = in + row.low * shape.in_width, *high = in + row.high * shape.in_width;
        for (const AxisSample<T>& c : columns) {
          const T g = *out++;
          low[c.low] = add(low[c.low], row.low_weight * c.low_weight * g);
          low[c.high] = add(low[c.high], row.low_weight * c.high_weight * g);
          high[c.low] = add(high[c.low], row.high_weight * c.low_weight * g);
          high[c.high] = add(high[c.high], row.high_weight * c.high_weight * g);
        }
      }
    });
  });
}

#define LOCKSTEP_INSTANTIATE(T)                                                                   \
  template void upsample_nearest2d(const UpsampleShape&, const std::vector<int64_t>&,             \
                                   const std::vector<int64_t>&, const T*, T*);                    \
  template void upsample_nearest2d_backward(const UpsampleShape&, const std::vector<int64_t>&,    \
                                            const std::vector<int64_t>&, const T*, T*,            \
                                            const Accumulator&);                                  \
  template void upsample_bilinear2d(const UpsampleShape&, const std::vector<AxisSample<T>>&,      \
                                    const std::vector<AxisSample<T>>&, const T*, T*);             \
  template void upsample_bilinear2d_backward(                                                     \
      const UpsampleShape&, const std::vector<AxisSample<T>>&, const std::vector<AxisSample<T>>&, \
      const T*, T*, const Accumulator&);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep
