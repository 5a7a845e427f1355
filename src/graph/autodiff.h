// Builds the backward pass by reverse-mode differentiation. It walks the forward nodes backwards;
// each op adds its own backward nodes, ordinary IR nodes with a forward partner. Gradients of a
// value used several times are added in the order in which the backward pass reaches them (last use
// first), as in PyTorch's engine. Each loss may have its own backward pass, as in a program that
// calls backward for each.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "src/graph/ir.h"

namespace lockstep {

// The interface for vector-Jacobian products. `node` is always a forward node of the graph.
class GradientBuilder {
 public:
  explicit GradientBuilder(Graph& graph) : graph_(graph) {}

  const Graph& graph() const { return graph_; }
  // The gradient of the node's output, or "" when nothing depends on it.
  std::string output_gradient(const Node& node, size_t index = 0) const;
  // True when some parameter feeds this operand, so that its gradient is needed.
  bool needs_gradient(const Node& node, size_t operand) const;
  // Adds a backward node whose outputs are the gradients of `node`'s operands listed in
  // `gradient_operands` (-1: an output that is not a gradient). Returns its id.
  std::string add_node(const Node& node, std::string_view op, std::vector<std::string> inputs,
                       Attributes attributes, std::vector<int> gradient_operands);
  // Uses an existing value as (part of) an operand's gradient, without a node: the `add` op's dy.
  void pass_gradient(const Node& node, size_t operand, const std::string& gradient);
  // Sets the autocast region of the node added last.
  void set_region(AutocastRegion region) { graph_.nodes.back().autocast = region; }

 private:
  friend class Differentiation;
  void accumulate(const std::string& value, const std::string& gradient, const Node& forward);
  Graph& graph_;
  std::map<std::string, std::string> gradient_;  // value id -> gradient so far
  std::map<std::string, bool> needs_;            // value id -> a parameter feeds it
  int next_id_ = 0;
  int pass_ = 0;
};

// The step graph: forward nodes, then backward nodes that start from the input `seed` (a scalar,
// the last of Graph::inputs, path "seed"). `gradients` has every parameter that requires a gradient
// and that the loss depends on. PyTorch leaves the others at None, and its optimizers skip them.
//   ids      backward nodes continue the numbering of the forward ones
//   joins    an `add` node; its gradient_of, layer and source line are those of the value that is
//            used several times; its forward_node is the value's producer, or for a parameter the
//            first consumer
// Requires: a scalar loss (InputError).
Graph differentiate(const Graph& forward);

// The step graph with one forward pass, then a backward pass for every named loss in the order of
// loss_names(). It has `seed:NAME` instead of `seed`, and Graph::passes. Gradients of different
// losses are not joined in the graph; the code that runs the graph adds them.
// Requires: a loss that is the sum of two or more named ones (InputError).
Graph differentiate_per_loss(const Graph& forward);

}  // namespace lockstep
