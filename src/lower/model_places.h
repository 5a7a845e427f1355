// Where in a graph is the place that a rule names?
//   block   a numbered module (h.3, layers.3, layer1.0: the shortest path that ends in a number)
//           with at least one product of weights in it; in the order in which they run. A model
//           with several stacks (encoder, decoder) has one order of all of them.
//   head    every product of weights after which no other one follows: the layers before the loss
//   first layer   every product of weights before which there is none
// A product of weights is a forward op that sums products and reads a parameter, or a value that
// depends on parameters alone (a transposed weight).
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "src/graph/ir.h"
#include "src/policy/policy.h"

namespace lockstep {

// The shortest path of a layer that ends in a number: "h.3" of "h.3.attn.qkv".
struct NumberedModule {
  std::string list;  // "h"; "" of modules numbered at the top
  size_t number;
  std::string path;
};
std::optional<NumberedModule> numbered_module(const std::string& layer);

class ModelPlaces {
 public:
  explicit ModelPlaces(const Graph& graph);  // a step graph or a forward graph

  const std::vector<std::string>& blocks() const { return blocks_; }  // "h.0", "h.1", ...
  // Whether the place has the node (a backward node: its forward partner).
  bool has(const Place& place, const Node& node) const;
  // The same for what belongs to a layer and to no node: a stored weight.
  bool has_layer(const Place& place, const std::string& layer) const;
  bool is_empty(const Place& place) const;

 private:
  const std::set<std::string>& nodes_of(const Place& place) const;

  const Graph& graph_;
  std::vector<std::string> blocks_;
  std::set<std::string> heads_, firsts_;  // ids of forward nodes
};

// The policy with the layers of this graph in place of the places of its rules, for readers that
// know layers alone: one rule for each layer. A place that the graph does not have leaves none.
// Throws: InputError for a layer whose name, as a pattern, matches layers outside of the place.
Policy with_layers_for_places(const Policy& policy, const Graph& graph);

}  // namespace lockstep
