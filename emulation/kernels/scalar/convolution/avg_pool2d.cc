// See avg_pool2d.h.
#include "emulation/kernels/scalar/convolution/avg_pool2d.h"

#include <algorithm>

#include "emulation/kernels/scalar/products/chain_add.h"
#include "src/core/chunks.h"

namespace lockstep {
namespace {

// body(plane, output index, row window, column window), in scan order within a plane.
template <typename Body>
void for_windows(const AvgPool& pool, Body body) {
  const auto windows = static_cast<int64_t>(pool.rows.size() * pool.columns.size());
  const int64_t work = std::max(windows, pool.height * pool.width);
  parallel_chunks(pool.planes, row_grain(work), [&](int64_t begin, int64_t end) {
    for (int64_t plane = begin; plane < end; ++plane) {
      int64_t out = plane * windows;
      for (const AxisWindow& row : pool.rows) {
        for (const AxisWindow& column : pool.columns) body(plane, out++, row, column);
      }
    }
  });
}

template <typename T>
T divisor_of(const AvgPool& pool, const AxisWindow& row, const AxisWindow& column) {
  return static_cast<T>(pool.divisor != 0 ? pool.divisor : row.extent * column.extent);
}

}  // namespace

template <typename T>
void avg_pool2d(const AvgPool& pool, const T* x, T* y, const Accumulator& accumulator) {
  with_chain_add<T>(accumulator, [&](auto add) {
    for_windows(pool,
                [&](int64_t plane, int64_t out, const AxisWindow& row, const AxisWindow& column) {
                  T sum = 0;
                  for (int64_t h = row.begin; h < row.end; ++h) {
                    const T* line = x + (plane * pool.height + h) * pool.width;
                    for (int64_t w = column.begin; w < column.end; ++w) sum = add(sum, line[w]);
                  }
                  const bool is_empty = row.begin >= row.end || column.begin >= column.end;
                  y[out] = is_empty ? T(0) : canonical_nan(sum / divisor_of<T>(pool, row, column));
                });
  });
}

template <typename T>
void avg_pool2d_backward(const AvgPool& pool, const T* dy, T* dx, const Accumulator& accumulator) {
  std::fill_n(dx, pool.planes * pool.height * pool.width, T(0));
  with_chain_add<T>(accumulator, [&](auto add) {
    for_windows(pool,
                [&](int64_t plane, int64_t out, const AxisWindow& row, const AxisWindow& column) {
                  const T share = dy[out] / divisor_of<T>(pool, row, column);
                  for (int64_t h = row.begin; h < row.end; ++h) {
                    T* line = dx + (plane * pool.height + h) * pool.width;
                    for (int64_t w = column.begin; w < column.end; ++w)
                      line[w] = add(line[w], share);
                  }
                });
  });
}

#define LOCKSTEP_INSTANTIATE(T)                                               \
  template void avg_pool2d(const AvgPool&, const T*, T*, const Accumulator&); \
  template void avg_pool2d_backward(const AvgPool&, const T*, T*, const Accumulator&);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep
