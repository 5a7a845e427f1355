// Arguments of kernels that move elements and round nothing.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep {

struct StridedDim {
  int64_t extent, x_stride, y_stride;  // a stride of 0 repeats an element of x
};

// Strides of a dense row-major array.
std::vector<int64_t> dense_strides(const std::vector<int64_t>& shape);

// The copy that repeats a dense x of shape `from` to a dense y of shape `to`. Shapes are aligned at
// their last dimension; extents of 1 are repeated. Requires: `from` broadcasts to `to`.
std::vector<StridedDim> repeating_dims(const std::vector<int64_t>& from,
                                       const std::vector<int64_t>& to);

// y[o, j, :] = x[o, index[j], :]; x (O,K,I), y (O,J,I). Requires: 0 <= index < K.
struct RowPick {
  int64_t outer, rows, inner;  // O, K, I of x
  const int32_t* index;
  int64_t count;      // J
  int64_t skip = -1;  // rows with this index get no gradient
};

// y[o, j, i] = x[outer[o] + index[o, j, i] * stride + inner[i]]; index and y (O,J,I).
struct ElementPick {
  std::vector<int64_t> outer, inner;  // where the dimensions around the indexed one begin in x
  int64_t stride, count;              // of the indexed dimension: in x; J
  const int32_t* index;
};

}  // namespace lockstep
