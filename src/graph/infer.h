// Infers the outputs of a node. This is the one place where a node is checked against its op's row;
// the builder, the autodiff and validate() all use it. Knows nothing of the rest of the graph.
#pragma once

#include <span>
#include <vector>

#include "src/graph/ir.h"

namespace lockstep {

// The output types of `node` for these operand types, by its op's shape rule.
// Throws: InputError with every problem: unknown op, number of operands, unknown attributes, and
// those that the shape rule finds.
std::vector<TensorType> infer_outputs(const Node& node, std::span<const TensorType> inputs);

}  // namespace lockstep
