// Shared by ops that only move elements: they accept any element type, round nothing, and keep
// their operand's format. For ops/*.cc alone.
#pragma once

#include <algorithm>
#include <vector>

#include "emulation/kernels/args/movement_args.h"
#include "src/graph/ops/op_helpers.h"

namespace lockstep {

// Calls `body` with a null pointer of output 0's element type: float, double or int32_t.
template <typename Body>
void dispatch_any(const OpCall& call, Body body) {
  if (call.outputs[0]->container() == Container::kI32) {
    body(static_cast<int32_t*>(nullptr));
  } else {
    dispatch(call, body);
  }
}

// The dimensions of a block of `extents` with the given strides in x and y.
inline std::vector<StridedDim> strided_dims(const Shape& extents, const std::vector<int64_t>& x,
                                            const std::vector<int64_t>& y) {
  std::vector<StridedDim> dims;
  for (size_t d = 0; d < extents.size(); ++d) dims.push_back({extents[d], x[d], y[d]});
  return dims;
}

// Elements [begin, end) of the dense y, of a copy of dimensions `dims`.
template <typename T>
void copy_part(const MovementKernels<T>& kernels, std::vector<StridedDim> dims, const T* x, T* y,
               int64_t begin, int64_t end) {
  if (begin == end) return;
  if (dims.empty()) return kernels.strided_copy(dims, x, y);
  const StridedDim rows = dims.front();
  const int64_t size = rows.y_stride;
  const auto copy_row_part = [&](int64_t row, int64_t from, int64_t to) {
    const std::vector<StridedDim> of_row(dims.begin() + 1, dims.end());
    copy_part(kernels, of_row, x + row * rows.x_stride, y + row * size, from, to);
  };
  if (begin % size != 0) {
    const int64_t row = begin / size, to = std::min(end, (row + 1) * size);
    copy_row_part(row, begin - row * size, to - row * size);
    begin = to;
  }
  const int64_t first = begin / size, last = end / size;
  if (first < last) {
    std::vector<StridedDim> whole = dims;
    whole.front().extent = last - first;
    kernels.strided_copy(whole, x + first * rows.x_stride, y + first * size);
    begin = last * size;
  }
  if (begin < end) copy_row_part(last, 0, end - begin);
}

// Has output 0 written by a copy of x with these strides, see fill_output().
template <typename T>
void copy_strided(const OpCall& call, const T* x, const std::vector<int64_t>& strides) {
  const Shape& shape = output_shape(call, 0);
  fill_output(call,
              [x, y = output<T>(call, 0), &kernels = call.kernels.movement<T>(),
               dims = strided_dims(shape, strides, dense_strides(shape))](
                  int64_t begin, int64_t end) { copy_part(kernels, dims, x, y, begin, end); });
}

// Throws: InputError when operand `index` holds a number outside [0, limit); returns its data.
inline const int32_t* checked_indices(const OpCall& call, size_t index, int64_t limit) {
  const auto values = call.inputs[index]->as<int32_t>();
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] >= 0 && values[i] < limit) continue;
    require(false, call.node,
            "index " + std::to_string(values[i]) + " at position " + std::to_string(i) +
                ", must be in [0, " + std::to_string(limit) + ")");
  }
  return values.data();
}

}  // namespace lockstep
