// Two passes over the forward nodes: values that depend on parameters alone, then what precedes and
// what follows each product of weights.
#include "src/lower/model_places.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/core/error.h"
#include "src/core/text.h"
#include "src/graph/infer.h"
#include "src/graph/op.h"

namespace lockstep {
namespace {

// "" of a layer that is in no numbered module.
std::string block_of(const std::string& layer) {
  const auto module = numbered_module(layer);
  return module ? module->path : "";
}

// The forward nodes that sum products with weights.
std::vector<const Node*> products_of_weights(const Graph& graph) {
  std::set<std::string> weights, others;  // value ids: of parameters alone, of inputs too
  for (const Parameter& p : graph.parameters) weights.insert("p:" + p.name);
  std::vector<const Node*> products;
  for (const Node& node : graph.nodes) {
    if (node.is_backward()) continue;
    const bool reads_weights = std::ranges::any_of(
        node.inputs, [&](const std::string& id) { return weights.contains(id); });
    const bool reads_others = std::ranges::any_of(node.inputs, [&](const std::string& id) {
      return others.contains(id) || id.starts_with("in");
    });
    if (reads_weights && reads_others && find_op(node.op).sums.of_products) {
      products.push_back(&node);
    }
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      if (reads_others) others.insert(output_id(node, k));
      if (reads_weights && !reads_others) weights.insert(output_id(node, k));
    }
  }
  return products;
}

}  // namespace

std::optional<NumberedModule> numbered_module(const std::string& layer) {
  constexpr size_t kLongestNumber = 6;
  for (size_t begin = 0; begin < layer.size();) {
    const size_t end = std::min(layer.find('.', begin), layer.size());
    const std::string part = layer.substr(begin, end - begin);
    const bool is_number = !part.empty() && part.size() <= kLongestNumber &&
                           part.find_first_not_of("0123456789") == std::string::npos;
    if (is_number) {
      return NumberedModule{layer.substr(0, begin == 0 ? 0 : begin - 1), std::stoul(part),
                            layer.substr(0, end)};
    }
    begin = end + 1;
  }
  return std::nullopt;
}

ModelPlaces::ModelPlaces(const Graph& graph) : graph_(graph) {
  const std::vector<const Node*> products = products_of_weights(graph);
  std::set<std::string> known, product_ids;
  for (const Node* node : products) {
    product_ids.insert(node->id);
    const std::string block = block_of(layer_of(graph, *node));
    if (!block.empty() && known.insert(block).second) blocks_.push_back(block);
  }
  std::set<std::string> after;  // nodes after some product
  for (const Node& node : graph.nodes) {
    if (node.is_backward()) continue;
    const bool is_after = std::ranges::any_of(node.inputs, [&](const std::string& id) {
      const std::string producer = split_value_id(id).first;
      return after.contains(producer) || product_ids.contains(producer);
    });
    if (is_after) after.insert(node.id);
    if (!is_after && product_ids.contains(node.id)) firsts_.insert(node.id);
  }
  std::set<std::string> before;  // nodes before some product
  for (auto node = graph.nodes.rbegin(); node != graph.nodes.rend(); ++node) {
    if (node->is_backward()) continue;
    const bool is_product = product_ids.contains(node->id);
    if (is_product && !before.contains(node->id)) heads_.insert(node->id);
    if (!is_product && !before.contains(node->id)) continue;
    for (const std::string& id : node->inputs) before.insert(split_value_id(id).first);
  }
}

const std::set<std::string>& ModelPlaces::nodes_of(const Place& place) const {
  return place.part == PlacePart::kHead ? heads_ : firsts_;
}

bool ModelPlaces::is_empty(const Place& place) const {
  return place.part == PlacePart::kBlocks ? blocks_.empty() : nodes_of(place).empty();
}

bool ModelPlaces::has(const Place& place, const Node& node) const {
  if (place.part == PlacePart::kBlocks) return has_layer(place, layer_of(graph_, node));
  return nodes_of(place).contains(node.is_backward() ? node.forward_node : node.id);
}

bool ModelPlaces::has_layer(const Place& place, const std::string& layer) const {
  if (place.part != PlacePart::kBlocks) {
    return std::ranges::any_of(nodes_of(place), [&](const std::string& id) {
      return layer_of(graph_, graph_.node(id)) == layer;
    });
  }
  const auto found = std::ranges::find(blocks_, block_of(layer));
  if (found == blocks_.end()) return false;
  const auto all = static_cast<int64_t>(blocks_.size());
  const int64_t index = found - blocks_.begin(), count = place.blocks_of(all);
  return place.from_end ? index >= all - count : index < count;
}

namespace {

// Layers stand as patterns in rules. Adds a problem for a name that is the pattern of others, too.
void check_names(const Place& place, const std::set<std::string>& layers, const Graph& graph,
                 ProblemList& problems) {
  std::set<std::string> others;
  for (const Node& node : graph.nodes) {
    if (!layers.contains(layer_of(graph, node))) others.insert(layer_of(graph, node));
  }
  for (const std::string& layer : layers) {
    const auto other = std::ranges::find_if(
        others, [&](const std::string& name) { return glob_match(layer, name); });
    if (other == others.end()) continue;
    problems.add(fmt::format("'{}': layer '{}' is a pattern that '{}' matches, too, which is not "
                             "there",
                             to_string(place), layer, *other),
                 "rename the module: no rule can name it alone");
  }
}

}  // namespace

Policy with_layers_for_places(const Policy& policy, const Graph& graph) {
  Policy resolved = policy;
  const bool has_places =
      std::ranges::any_of(policy.rules, [](const PolicyRule& r) { return r.place.has_value(); });
  if (!has_places) return resolved;
  const ModelPlaces places(graph);
  ProblemList problems("place");
  resolved.rules.clear();
  for (const PolicyRule& rule : policy.rules) {
    if (!rule.place) {
      resolved.rules.push_back(rule);
      continue;
    }
    std::set<std::string> seen;
    for (const Node& node : graph.nodes) {
      const std::string layer = layer_of(graph, node);
      if (node.is_backward() || !places.has(*rule.place, node) || !glob_match(rule.layer, layer) ||
          !seen.insert(layer).second) {
        continue;
      }
      PolicyRule own = rule;
      own.place.reset();
      own.layer = layer;
      resolved.rules.push_back(std::move(own));
    }
    check_names(*rule.place, seen, graph, problems);
  }
  problems.throw_if_any();
  return resolved;
}

}  // namespace lockstep
