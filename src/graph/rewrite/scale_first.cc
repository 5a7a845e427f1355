// See scale_first.h.
#include "src/graph/rewrite/scale_first.h"

#include <algorithm>
#include <cmath>

#include "src/graph/op.h"
#include "src/graph/rewrite/new_node.h"

namespace lockstep {
namespace {

size_t readers_of(const Graph& forward, const std::string& value) {
  size_t count = value == forward.loss ? 1 : 0;
  for (const Node& node : forward.nodes) count += std::ranges::count(node.inputs, value);
  for (const auto& [name, output] : forward.outputs) count += output == value;
  return count;
}

// The number that the node multiplies by; 0: it does no such thing.
double factor_of(const Node& node) {
  const double number = double_attribute(node, "scalar", 0);
  if (node.op == "mul") return number;
  return node.op == "div" && number != 0 ? 1 / number : 0;
}

// The matmul whose scaled result this is; null: there is none.
const Node* product_of(const Graph& forward, const Node& node) {
  const Node* reader = &node;
  for (;;) {
    const std::string& value = reader->inputs[0];
    const Node* from = forward.producer_of(value);
    if (from == nullptr || readers_of(forward, value) != 1) return nullptr;
    if (from->op == "matmul") return from;
    if (from->op != "cast") return nullptr;
    reader = from;
  }
}

}  // namespace

bool is_scaled_product(const Graph& forward, const Node& node) {
  if (node.is_backward() || node.inputs.size() != 1) return false;
  const double factor = std::fabs(factor_of(node));
  return factor > 0 && factor < 1 && product_of(forward, node) != nullptr;
}

void scale_first_operand(Graph& forward, size_t node, double) {
  Node& after = forward.nodes[node];
  const std::string product_id = product_of(forward, after)->id;
  const auto product = std::ranges::find(forward.nodes, product_id, &Node::id);
  Node scale = after;
  scale.id = new_node_id(forward);
  scale.op = "mul";
  scale.attributes = {{"scalar", factor_of(after)}};
  scale.inputs = {product->inputs[0]};
  scale.outputs = {forward.type_of(product->inputs[0])};
  scale.layer = product->layer;
  scale.source_line = product->source_line;
  product->inputs[0] = scale.id;
  after.op = "mul";
  after.attributes = {{"scalar", 1.0}};
  forward.nodes.insert(product, std::move(scale));
}

}  // namespace lockstep
