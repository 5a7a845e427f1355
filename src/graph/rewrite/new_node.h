// The id of a node that a rewrite adds.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "src/graph/ir.h"

namespace lockstep {

// "n57": a number that no node of the graph has. `further`: after others that are not yet in it.
inline std::string new_node_id(const Graph& graph, int64_t further = 0) {
  int64_t largest = 0;
  for (const Node& node : graph.nodes) {
    largest = std::max<int64_t>(largest, std::stoll(node.id.substr(1)));
  }
  return "n" + std::to_string(largest + 1 + further);
}

}  // namespace lockstep
