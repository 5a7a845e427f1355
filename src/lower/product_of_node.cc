// See product_of_node.h.
#include "src/lower/product_of_node.h"

#include <algorithm>

namespace lockstep {

Product product_of(const Graph& graph, const Node& node) {
  if (!node.is_backward()) return Product::kFprop;
  const std::string& first = graph.node(node.forward_node).inputs.at(0);
  return std::ranges::count(node.inputs, first) > 0 ? Product::kWgrad : Product::kDgrad;
}

}  // namespace lockstep
