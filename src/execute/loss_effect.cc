// See loss_effect.h.
#include "src/execute/loss_effect.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>

namespace lockstep {
namespace {

struct Links {
  std::map<std::string_view, std::vector<const Node*>> backward;  // by forward node
  std::map<std::string_view, int> readers;                        // forward nodes, by value
};

Links links_of(const Graph& graph) {
  Links out;
  for (const Node& node : graph.nodes) {
    if (node.is_backward()) {
      out.backward[node.forward_node].push_back(&node);
      continue;
    }
    for (const std::string& input : node.inputs) ++out.readers[input];
  }
  return out;
}

// The derivative of operand `index` of a forward node, as its own backward nodes compute it; if a
// value is read once, also the derivative of the value. An operand that a node reads twice has two
// derivatives, which are not separated.
std::string operand_adjoint(const Graph& graph, const Links& links, const Node& node,
                            size_t index) {
  const std::string& value = node.inputs.at(index);
  if (std::ranges::count(node.inputs, value) > 1) return "";
  const auto own = links.backward.find(node.id);
  if (own != links.backward.end()) {
    for (const Node* backward : own->second) {
      const auto at = std::ranges::find(backward->gradient_of, value);
      if (at == backward->gradient_of.end()) continue;
      return output_id(*backward, static_cast<size_t>(at - backward->gradient_of.begin()));
    }
  }
  const auto found = graph.adjoints.find(value);
  return links.readers.at(value) == 1 && found != graph.adjoints.end() ? found->second : "";
}

}  // namespace

RoundingErrors rounding_errors(std::span<const float> before, std::span<const float> after,
                               const Format& format, float scale) {
  RoundingErrors out{std::vector<float>(before.size()), std::vector<bool>(before.size())};
  for (size_t i = 0; i < before.size(); ++i) {
    if (!std::isfinite(before[i]) || !std::isfinite(after[i])) continue;
    out.error[i] = after[i] / scale - before[i];
    const bool vanished = after[i] == 0 && before[i] != 0;
    out.left_range[i] = vanished || std::fabs(before[i] * scale) > format.max_finite;
  }
  return out;
}

LossEffect loss_effect(const RoundingErrors& errors, std::span<const float> derivative) {
  if (errors.error.size() != derivative.size()) {
    throw std::logic_error("loss_effect: as many derivatives as errors required");
  }
  LossEffect out;
  for (size_t i = 0; i < derivative.size(); ++i) {
    const double effect = static_cast<double>(errors.error[i]) * derivative[i];
    if (!std::isfinite(effect)) continue;
    (errors.left_range[i] ? out.range : out.rounding) += effect;
  }
  return out;
}

Adjoints::Adjoints(const Graph& graph, const SiteTable& sites)
    : of_site_(sites.sites.size()), after_node_(graph.nodes.size()) {
  if (graph.adjoints.empty()) return;
  std::map<std::string, size_t, std::less<>> producer;  // of every value, by its id
  std::map<std::string, size_t, std::less<>> node_at;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    node_at[graph.nodes[n].id] = n;
    for (size_t o = 0; o < graph.nodes[n].outputs.size(); ++o) {
      producer[output_id(graph.nodes[n], o)] = n;
    }
  }
  const Links links = links_of(graph);
  for (const Site& site : sites.sites) {
    const auto at = node_at.find(site.node);
    if (at == node_at.end() || graph.nodes[at->second].is_backward()) continue;
    const Node& node = graph.nodes[at->second];
    const auto index = static_cast<size_t>(site.index);
    std::string& adjoint = of_site_[static_cast<size_t>(site.id)];
    if (site.point == Point::kOperand) {
      adjoint = operand_adjoint(graph, links, node, index);
    } else if (site.point == Point::kOutput) {
      const auto found = graph.adjoints.find(output_id(node, index));
      if (found != graph.adjoints.end()) adjoint = found->second;
    }
    const auto made_by = producer.find(adjoint);
    if (made_by == producer.end()) {
      adjoint.clear();  // the seed of the loss itself
    } else {
      after_node_[made_by->second].push_back(site.id);
    }
  }
}

}  // namespace lockstep
