// See rows.h.
#include "src/graph/ops/rows.h"

#include <algorithm>

#include "src/graph/ops/op_helpers.h"

namespace lockstep {
namespace {

int64_t wrapped_dim(const Node& node, const Shape& shape, int64_t dim) {
  const auto rank = static_cast<int64_t>(shape.size());
  require(dim >= -rank && dim < rank, node,
          "dimension " + std::to_string(dim) + " of " + to_string(shape) + ", must be " +
              std::to_string(-rank) + " to " + std::to_string(rank - 1));
  return dim < 0 ? dim + rank : dim;
}

}  // namespace

std::vector<int64_t> reduced_dims(const Node& node, std::string_view attribute,
                                  const Shape& shape) {
  std::vector<int64_t> dims = ints_attribute(node, attribute, {});
  if (dims.empty()) {
    for (size_t dim = 0; dim < shape.size(); ++dim) dims.push_back(static_cast<int64_t>(dim));
    return dims;
  }
  for (int64_t& dim : dims) dim = wrapped_dim(node, shape, dim);
  std::sort(dims.begin(), dims.end());
  const auto twice = std::adjacent_find(dims.begin(), dims.end());
  require(twice == dims.end(), node,
          "attribute '" + std::string(attribute) + "' names dimension " +
              std::to_string(twice == dims.end() ? 0 : *twice) + " twice, must name each once");
  return dims;
}

int64_t single_dim(const Node& node, const Shape& shape, int64_t fallback) {
  require(!shape.empty(), node, "operand 0 is a scalar, must have a dimension to work along");
  return wrapped_dim(node, shape, int_attribute(node, "dim", fallback));
}

Shape reduced_shape(const Shape& shape, std::span<const int64_t> dims, bool keepdim) {
  Shape result;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    const bool reduced =
        std::find(dims.begin(), dims.end(), static_cast<int64_t>(dim)) != dims.end();
    if (!reduced) result.push_back(shape[dim]);
    if (reduced && keepdim) result.push_back(1);
  }
  return result;
}

RowLayout::RowLayout(const Shape& shape, std::span<const int64_t> dims) {
  const auto is_reduced = [&](size_t dim) {
    return std::find(dims.begin(), dims.end(), static_cast<int64_t>(dim)) != dims.end();
  };
  const std::vector<int64_t> strides = dense_strides(shape);
  std::vector<int64_t> row_strides(shape.size());
  int64_t step = 1;
  for (const bool reduced : {true, false}) {
    for (size_t dim = shape.size(); dim-- > 0;) {
      if (is_reduced(dim) != reduced) continue;
      row_strides[dim] = step;
      step *= shape[dim];
      (reduced ? cols : rows) *= shape[dim];
    }
  }
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    in_place = in_place && (shape[dim] == 1 || row_strides[dim] == strides[dim]);
    from_rows_.push_back({shape[dim], row_strides[dim], strides[dim]});
  }
  for (const bool reduced : {false, true}) {
    for (size_t dim = 0; dim < shape.size(); ++dim) {
      if (is_reduced(dim) == reduced) {
        to_rows_.push_back({shape[dim], strides[dim], row_strides[dim]});
      }
    }
  }
}

}  // namespace lockstep
