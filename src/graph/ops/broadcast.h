// How do two shapes meet?
// numpy's rule: shapes are aligned at their last dimension, and an extent of 1 (or a missing
// dimension) is repeated. A gradient goes the other way, through sum_to. For ops/*.cc alone.
#pragma once

#include <vector>

#include "src/graph/autodiff.h"
#include "src/graph/op.h"

namespace lockstep {

// The common shape. Throws: InputError naming the node when two extents differ and neither is 1.
Shape broadcast_shape(const Node& node, const Shape& a, const Shape& b);

// The elements of x (shape `from`) repeated to shape `to`: x itself where nothing is repeated,
// otherwise `storage`, which is filled. Requires: `from` broadcasts to `to`.
template <typename T>
const T* expand(const T* x, const Shape& from, const Shape& to, std::vector<T>& storage);

// The vector-Jacobian product of operand `operand` of a broadcasting op, `gradient` being the
// gradient for the operand as repeated: adds the sum_to that is needed, if one is.
void reduce_gradient(GradientBuilder& builder, const Node& node, size_t operand,
                     const std::string& gradient);

}  // namespace lockstep
