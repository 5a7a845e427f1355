// See rows.h. Rows are spread over the threads; the index within a row counts like an odometer.
#include "src/graph/ops/rows.h"

#include <algorithm>

#include "src/core/chunks.h"
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
  std::vector<int64_t> strides(shape.size());
  int64_t step = 1;
  for (size_t dim = shape.size(); dim-- > 0; step *= shape[dim]) strides[dim] = step;
  bool reduced_before = false;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    if (shape[dim] == 1) continue;
    const bool reduced =
        std::find(dims.begin(), dims.end(), static_cast<int64_t>(dim)) != dims.end();
    in_place = in_place && (reduced || !reduced_before);
    reduced_before = reduced_before || reduced;
    (reduced ? cols : rows) *= shape[dim];
    std::vector<Dim>& group = reduced ? reduced_ : kept_;
    if (!group.empty() && group.back().stride == shape[dim] * strides[dim]) {
      group.back() = {group.back().extent * shape[dim], strides[dim]};
    } else {
      group.push_back({shape[dim], strides[dim]});
    }
  }
}

// move(position in the rows, offset into x, stride in x, count) for runs of the last reduced group.
template <typename Move>
void RowLayout::for_each_run(Move move) const {
  const Dim last = reduced_.empty() ? Dim{1, 1} : reduced_.back();
  parallel_chunks(rows, row_grain(cols), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      int64_t base = 0, rest = row;
      for (size_t i = kept_.size(); i-- > 0; rest /= kept_[i].extent) {
        base += rest % kept_[i].extent * kept_[i].stride;
      }
      for (int64_t col = 0; col < cols; col += last.extent) {
        int64_t offset = base;
        rest = col / last.extent;
        for (size_t i = reduced_.size() < 2 ? 0 : reduced_.size() - 1; i-- > 0;
             rest /= reduced_[i].extent) {
          offset += rest % reduced_[i].extent * reduced_[i].stride;
        }
        move(row * cols + col, offset, last.stride, last.extent);
      }
    }
  });
}

template <typename T>
const T* RowLayout::gather(const T* x, std::vector<T>& storage) const {
  if (in_place) return x;
  storage.resize(static_cast<size_t>(rows * cols));
  T* out = storage.data();
  for_each_run([=](int64_t position, int64_t offset, int64_t stride, int64_t count) {
    for (int64_t i = 0; i < count; ++i) out[position + i] = x[offset + i * stride];
  });
  return out;
}

template <typename T>
void RowLayout::scatter(const T* from, T* x) const {
  for_each_run([=](int64_t position, int64_t offset, int64_t stride, int64_t count) {
    for (int64_t i = 0; i < count; ++i) x[offset + i * stride] = from[position + i];
  });
}

#define LOCKSTEP_INSTANTIATE(T)                                            \
  template const T* RowLayout::gather<T>(const T*, std::vector<T>&) const; \
  template void RowLayout::scatter<T>(const T*, T*) const;
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
LOCKSTEP_INSTANTIATE(int32_t)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep
