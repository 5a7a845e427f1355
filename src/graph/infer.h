// Which outputs does a node have?
// The one place where a node is checked against its op's row; the builder, the autodiff and
// validate() all ask here. Knows nothing of the rest of the graph.
#pragma once

#include <span>
#include <vector>

#include "src/graph/ir.h"

namespace lockstep {

// The output types of `node` for these operand types, by its op's shape rule.
// Throws: InputError with every problem: unknown op, number of operands, unknown attributes, and
// what the shape rule says.
std::vector<TensorType> infer_outputs(const Node& node, std::span<const TensorType> inputs);

// Text for messages: "f32[64, 1, 28, 28]", "i32[64]".
std::string to_string(const TensorType& type);

// The layer that reports name for a node: its module path, or where there is none its op's name (a
// backward node's: its forward partner's).
std::string layer_of(const Graph& graph, const Node& node);

}  // namespace lockstep
