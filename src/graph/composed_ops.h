// Which ops of PyTorch are several ops here, and how does autocast treat the whole?
// A graph has such an op between composed_operand nodes and a composed_result node, which carry its
// name; a policy's lists name it like any op. What lies between them is one kernel in PyTorch: FP32
// inside, whatever the policy, and rounded once. Knows nothing of what the ops compute.
#pragma once

#include <set>
#include <span>
#include <string>
#include <string_view>

#include "src/graph/ir.h"
#include "src/graph/op.h"

namespace lockstep {

struct ComposedOp {
  std::string_view name;  // torch's, without overload
  CastClass cast_class;   // CUDA autocast's
  std::string_view help;
  bool is_loss = false;  // as OpDef::is_loss
  ForeignNames foreign_names = {};
};
std::span<const ComposedOp> composed_ops();
// Null: an op of op_list.cc, or none.
const ComposedOp* find_composed_op(std::string_view name);

// The names that a policy's lists may have: forward ops, and composed ones.
std::vector<std::string> listable_op_names();

// The op whose class holds for a node: its own, or the composed one whose border it is.
std::string listed_name(const Node& node, const OpDef& op);
CastClass own_class(const std::string& listed_name);
bool is_loss(const Node& node, const OpDef& op);

// Nodes that compute with what a composed_operand widened, up to the composed_result, by id.
std::set<std::string> composed_parts(const Graph& graph);

}  // namespace lockstep
