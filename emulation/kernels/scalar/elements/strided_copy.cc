// Dimensions that form one run in both arrays are merged. Then rows are copied whole where both are
// contiguous; where x runs along another dimension than y, matrices are transposed tile by tile.
#include "emulation/kernels/scalar/elements/strided_copy.h"

#include <algorithm>

#include "src/core/chunks.h"

namespace lockstep {
namespace {

// A tile of 16 x 16 floats touches 16 cache lines on either side.
constexpr int64_t kTile = 16;

// Removes extents of 1; neighbouring dimensions that form one run in both arrays become one.
std::vector<StridedDim> merge(const std::vector<StridedDim>& dims) {
  std::vector<StridedDim> merged;
  for (const StridedDim& dim : dims) {
    if (dim.extent == 1) continue;
    if (!merged.empty() && merged.back().x_stride == dim.x_stride * dim.extent &&
        merged.back().y_stride == dim.y_stride * dim.extent) {
      merged.back() = {merged.back().extent * dim.extent, dim.x_stride, dim.y_stride};
    } else {
      merged.push_back(dim);
    }
  }
  return merged;
}

template <typename T>
void copy_row(const StridedDim& row, const T* x, T* y) {
  if (row.x_stride == 1 && row.y_stride == 1) {
    std::copy_n(x, row.extent, y);
  } else if (row.x_stride == 0 && row.y_stride == 1) {
    std::fill_n(y, row.extent, *x);
  } else {
    for (int64_t i = 0; i < row.extent; ++i) y[i * row.y_stride] = x[i * row.x_stride];
  }
}

// Rows [begin, begin + rows) of dimension `outer`, along which x is contiguous, for all of `inner`.
// Uses a buffer, so that whole cache lines are read and written: with a power of two as the stride,
// the lines of a column would evict each other from the cache.
template <typename T>
void copy_tiles(const StridedDim& outer, const StridedDim& inner, int64_t begin, int64_t rows,
                const T* x, T* y) {
  T buffer[kTile * kTile];
  for (int64_t j0 = 0; j0 < inner.extent; j0 += kTile) {
    const int64_t columns = std::min(kTile, inner.extent - j0);
    for (int64_t j = 0; j < columns; ++j) {
      const T* from = x + begin + (j0 + j) * inner.x_stride;
      for (int64_t i = 0; i < rows; ++i) buffer[i * kTile + j] = from[i];
    }
    for (int64_t i = 0; i < rows; ++i) {
      T* to = y + (begin + i) * outer.y_stride + j0 * inner.y_stride;
      for (int64_t j = 0; j < columns; ++j) to[j * inner.y_stride] = buffer[i * kTile + j];
    }
  }
}

struct Place {
  int64_t x, y;
};
// The position of item `index` of the dimensions, counted row-major.
Place place_of(const std::vector<StridedDim>& dims, int64_t index) {
  Place place{0, 0};
  for (size_t d = dims.size(); d-- > 0;) {
    const int64_t i = index % dims[d].extent;
    index /= dims[d].extent;
    place.x += i * dims[d].x_stride;
    place.y += i * dims[d].y_stride;
  }
  return place;
}

}  // namespace

template <typename T>
void strided_copy(const std::vector<StridedDim>& dims, const T* x, T* y) {
  for (const StridedDim& dim : dims) {
    if (dim.extent == 0) return;
  }
  std::vector<StridedDim> outer = merge(dims);
  if (outer.empty()) {
    *y = *x;
    return;
  }
  const StridedDim inner = outer.back();
  outer.pop_back();
  const auto items = [&] {
    int64_t count = 1;
    for (const StridedDim& dim : outer) count *= dim.extent;
    return count;
  };
  const auto along_x = std::find_if(outer.begin(), outer.end(), [&](const StridedDim& dim) {
    return dim.x_stride == 1 && inner.x_stride != 1;
  });
  if (along_x == outer.end()) {
    parallel_chunks(items(), row_grain(inner.extent), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const Place at = place_of(outer, i);
        copy_row(inner, x + at.x, y + at.y);
      }
    });
    return;
  }
  const StridedDim rows = *along_x;
  outer.erase(along_x);
  const int64_t tiles = (rows.extent + kTile - 1) / kTile;
  parallel_chunks(
      items() * tiles, row_grain(kTile * inner.extent), [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; ++task) {
          const Place at = place_of(outer, task / tiles);
          const int64_t first = task % tiles * kTile;
          copy_tiles(rows, inner, first, std::min(kTile, rows.extent - first), x + at.x, y + at.y);
        }
      });
}

template <typename T>
void fill(T value, T* y, int64_t count) {
  parallel_chunks(count, kElementGrain,
                  [&](int64_t begin, int64_t end) { std::fill(y + begin, y + end, value); });
}

#define LOCKSTEP_INSTANTIATE(T)                                             \
  template void strided_copy(const std::vector<StridedDim>&, const T*, T*); \
  template void fill(T, T*, int64_t);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
LOCKSTEP_INSTANTIATE(int32_t)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep
