// The PyTorch ops that are several nodes in a graph, with the cast class of the whole, and products
// that are one node, but have a class of their own.
// In a graph, composed_operand nodes and a composed_result node enclose such an op and carry its
// name; a policy's lists name it like any op. The nodes between them are one kernel in PyTorch:
// FP32 inside under every policy, rounded once. Knows nothing of what the ops compute.
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
  bool is_loss = false;  // as OpMeaning::is_loss
  ForeignNames foreign_names = {};
  bool is_product = false;   // one matmul node, which names it
  bool keeps_class = false;  // under autocast whose lists do not name it, too
};
std::span<const ComposedOp> composed_ops();
// Null if the name is an op of op_list.cc or unknown.
const ComposedOp* find_composed_op(std::string_view name);

// The names that a policy's lists may contain: forward ops and composed ops.
std::vector<std::string> listable_op_names();

// The op whose class applies to a node: its own, or the composed op whose border it is.
std::string listed_name(const Node& node, const OpDef& op);
CastClass own_class(const std::string& listed_name);
bool is_loss(const Node& node, const OpDef& op);

// A composed_operand whose operand the op itself makes, such as the cosines of a Fourier transform.
// They are in FP32 in every policy.
inline constexpr std::string_view kOwnAttribute = "own";
bool is_own_constant(const Node& node);

// Ids of the nodes between a composed_operand that widens and its composed_result, and of the op's
// own constants.
std::set<std::string> composed_inner_nodes(const Graph& graph);

}  // namespace lockstep
