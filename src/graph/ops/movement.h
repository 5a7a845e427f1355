// Shared by ops that only move elements: they accept any element type, round nothing, and keep
// their operand's format. For ops/*.cc alone.
#pragma once

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
