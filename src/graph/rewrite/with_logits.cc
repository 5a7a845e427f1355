// See with_logits.h.
#include "src/graph/rewrite/with_logits.h"

#include "src/graph/rewrite/new_node.h"

namespace lockstep {
namespace {

// The node that computes the operand, before casts; null: none does.
const Node* source_of(const Graph& forward, const Node& node) {
  const Node* from = forward.producer_of(node.inputs[0]);
  while (from != nullptr && from->op == "cast") from = forward.producer_of(from->inputs[0]);
  return from;
}

Node like(const Node& node, std::string id, std::string op, std::string input) {
  Node made = node;
  made.id = std::move(id);
  made.op = std::move(op);
  made.inputs = {std::move(input)};
  made.attributes.clear();
  made.torch_op.clear();
  return made;
}

}  // namespace

bool is_log_of_probability(const Graph& forward, const Node& node) {
  if (node.op != "log" || node.is_backward()) return false;
  const Node* from = source_of(forward, node);
  return from != nullptr && (from->op == "sigmoid" || from->op == "softmax");
}

void take_log_of_logits(Graph& forward, size_t node, double) {
  Node& log = forward.nodes[node];
  const Node& from = *source_of(forward, log);
  if (from.op == "softmax") {
    const Attributes attributes = from.attributes;
    log = like(log, log.id, "log_softmax", from.inputs[0]);
    log.attributes = attributes;
    return;
  }
  Node minus = like(log, new_node_id(forward), "mul", from.inputs[0]);
  minus.attributes["scalar"] = -1.0;
  Node softplus = like(log, new_node_id(forward, 1), "softplus", minus.id);
  log = like(log, log.id, "mul", softplus.id);
  log.attributes["scalar"] = -1.0;
  const auto at = forward.nodes.begin() + static_cast<std::ptrdiff_t>(node);
  forward.nodes.insert(at, {std::move(minus), std::move(softplus)});
}

}  // namespace lockstep
