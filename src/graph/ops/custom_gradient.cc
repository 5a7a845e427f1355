// custom_gradient: a function whose backward pass the user wrote (torch.autograd.Function). Its
// forward pass is ordinary nodes; this node ends it and carries the backward pass, which autodiff
// uses instead of going back through those nodes.
#include <cstring>
#include <limits>
#include <numeric>

#include "src/graph/ops/op_helpers.h"
#include "src/graph/recorded_backward.h"

namespace lockstep {
namespace {

constexpr int kMostOperands = 1024;

// Every result keeps the format that it was computed in.
std::vector<int> own_formats(const Node& node) {
  std::vector<int> follows(node.outputs.size());
  std::iota(follows.begin(), follows.end(), 0);
  return follows;
}

void run_results(const OpCall& call) {
  for (size_t k = 0; k < call.outputs.size(); ++k) {
    std::memcpy(call.outputs[k]->raw(), call.inputs[k]->raw(), call.inputs[k]->bytes());
  }
}

std::vector<TensorType> infer_zeros(const Node& node, std::span<const TensorType> inputs) {
  require_floats(node, inputs);
  return {inputs[0]};
}

}  // namespace

std::vector<OpDef> custom_gradient_ops() {
  return {
      {.name = "custom_gradient",
       .help = "y = the first `results` operands; the node's own backward pass gives the gradients "
               "of the operands after them, from dy and from all operands",
       .source = "torch.autograd.Function; its backward is recorded as it ran",
       .min_inputs = 2,
       .max_inputs = kMostOperands,
       .attributes = {"results"},
       .infer = infer_custom_gradient,
       .vjp = custom_gradient_vjp,
       .run = run_results,
       .differentiable_outputs = std::numeric_limits<int>::max(),
       .formats = {.follow_operands = {0}, .node_follows = own_formats},
       .elements = {.keeps_masks = true}},
      {.name = "no_gradient_backward",
       .help = "dy = 0, for an output that the loss does not depend on; operand y",
       .source = "torch.autograd.Function, materialized gradients",
       .infer = infer_zeros,
       .run = [](const OpCall& call) { call.outputs[0]->fill_zero(); }},
  };
}

}  // namespace lockstep
