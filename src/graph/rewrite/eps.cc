// See eps.h.
#include "src/graph/rewrite/eps.h"

#include "src/graph/op.h"

namespace lockstep {
namespace {

constexpr double kLargestEps = 0.01;  // a larger number is no eps

// The attribute that holds the eps; "": the node has none.
std::string_view attribute_of(const Node& node) {
  if (node.is_backward()) return "";
  if (node.attributes.contains("eps")) return "eps";
  if (node.op == "add") return "scalar";
  return node.op == "clamp" ? "min" : "";
}

}  // namespace

double eps_of(const Node& node) {
  const std::string_view name = attribute_of(node);
  return name.empty() ? 0 : double_attribute(node, name, 0);
}

bool has_eps(const Graph&, const Node& node) {
  const double eps = eps_of(node);
  return eps > 0 && eps <= kLargestEps;
}

void set_eps(Graph& forward, size_t node, double eps) {
  Node& changed = forward.nodes[node];
  changed.attributes[std::string(attribute_of(changed))] = eps;
}

}  // namespace lockstep
