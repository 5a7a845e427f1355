// A tensor of two or more dimensions as a stack of matrices. For ops/*.cc alone.
#pragma once

#include <vector>

#include "src/core/tensor.h"

namespace lockstep {

struct Matrix {
  int64_t rows, cols;
};
// The last two extents. Requires: at least 2 dimensions.
inline Matrix matrix_of(const Shape& shape) {
  return {shape[shape.size() - 2], shape.back()};
}
// All extents but the last two.
inline Shape batch_of(const Shape& shape) {
  return Shape(shape.begin(), shape.end() - 2);
}

// For each place of `to`, the matrix of a stack with batch dimensions `from`; empty if they are the
// same. Requires: `from` broadcasts to `to`.
inline std::vector<int64_t> repeated_matrices(const Shape& from, const Shape& to) {
  if (element_count(from) == element_count(to)) return {};
  std::vector<int64_t> matrices(static_cast<size_t>(element_count(to)));
  for (size_t place = 0; place < matrices.size(); ++place) {
    auto rest = static_cast<int64_t>(place);
    int64_t matrix = 0, stride = 1;  // digit by digit, the last dimension first
    for (size_t d = 1; d <= from.size(); ++d) {
      const int64_t digit = rest % to[to.size() - d], extent = from[from.size() - d];
      rest /= to[to.size() - d];
      if (extent > 1) matrix += digit * stride;
      stride *= extent;
    }
    matrices[place] = matrix;
  }
  return matrices;
}

}  // namespace lockstep
