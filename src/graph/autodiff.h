// How does the backward pass come about?
// Reverse mode: walks the forward nodes backwards and lets each op add its own backward nodes,
// which are ordinary IR nodes with a forward partner. Gradients of a value used several times are
// added in the order in which the backward pass reaches them (last use first), as PyTorch's engine
// does. Each loss may have a backward pass of its own, as when a program calls backward for each.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "src/graph/ir.h"

namespace lockstep {

// What a vector-Jacobian product sees. The node it belongs to is a forward node of the graph.
class GradientBuilder {
 public:
  explicit GradientBuilder(Graph& graph) : graph_(graph) {}

  const Graph& graph() const { return graph_; }
  // The gradient of the node's output, or "" when nothing depends on it.
  std::string output_gradient(const Node& node, size_t index = 0) const;
  // True when some parameter feeds this operand, so that its gradient is needed.
  bool needs_gradient(const Node& node, size_t operand) const;
  // Adds a backward node whose outputs are the gradients of `node`'s operands listed in
  // `gradient_operands` (-1: an output that is no gradient). Returns its id.
  std::string add_node(const Node& node, std::string_view op, std::vector<std::string> inputs,
                       Attributes attributes, std::vector<int> gradient_operands);
  // An existing value is (a part of) the gradient of an operand, without a node: the `add` op's dy.
  void pass_gradient(const Node& node, size_t operand, const std::string& gradient);

 private:
  friend class Differentiation;
  void accumulate(const std::string& value, const std::string& gradient, const Node& forward);
  Graph& graph_;
  std::map<std::string, std::string> gradient_;  // value id -> gradient so far
  std::map<std::string, bool> needs_;            // value id -> a parameter feeds it
  int next_id_ = 0;
  int pass_ = 0;
};

// The step graph: forward nodes, then backward nodes starting from the input `seed` (a scalar, the
// last of Graph::inputs, path "seed"), and `gradients` for every parameter that requires one and
// that the loss depends on (PyTorch leaves the others at None, and its optimizers skip them).
//   ids      backward nodes continue the numbering of the forward ones
//   joins    an `add` node; its gradient_of, layer and source line are those of the value that is
//            used several times; its forward_node is the value's producer, for a parameter its
//            first consumer
// Requires: a scalar loss (InputError).
Graph differentiate(const Graph& forward);

// The step graph with a backward pass for every named loss, in the order of loss_names(), behind
// one forward pass: `seed:NAME` instead of `seed`, and Graph::passes. What is used by several
// losses is joined in none of them; the losses' gradients are added up by who runs the graph.
// Requires: a loss that is the sum of two or more named ones (InputError).
Graph differentiate_per_loss(const Graph& forward);

}  // namespace lockstep
