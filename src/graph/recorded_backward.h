// The backward pass of a custom_gradient node (ir.h, RecordedBackward): its checks, and its copy
// into a step graph. Where PyTorch calls what the user wrote, autodiff adds these nodes:
//
//   dy0 -- cast_backward --> in output 0's format -- the recorded nodes --> cast_backward --> dx
#pragma once

#include "src/graph/autodiff.h"

namespace lockstep {

// The types of a custom_gradient node's outputs; checks ids, ops, types and gradients of its
// backward pass. Throws: InputError with the first problem.
std::vector<TensorType> infer_custom_gradient(const Node& node, std::span<const TensorType> inputs);
void custom_gradient_vjp(GradientBuilder& builder, const Node& node);

// Whether a backward node of a step graph comes from a recorded backward pass. Its op is a forward
// op, and its formats are those of one.
bool is_recorded(const Graph& step, const Node& node);

}  // namespace lockstep
