// Matching is by globs. Of the matching rules, the last one that sets the property decides.
#include "src/lower/rule_match.h"

#include <algorithm>
#include <set>

#include "src/core/text.h"
#include "src/graph/infer.h"

namespace lockstep {
namespace {

constexpr size_t kListedNames = 24;  // enough for a small model's layers, short enough to read

std::string listed(const std::set<std::string>& names) {
  std::vector<std::string> shown(names.begin(), names.end());
  if (shown.size() > kListedNames) {
    shown.resize(kListedNames);
    shown.push_back("...");
  }
  return join(shown, ", ");
}

std::string quoted(const PolicyRule& rule) {
  std::string text = "layer = \"" + rule.layer + "\"";
  if (rule.place) text += ", place = \"" + to_string(*rule.place) + "\"";
  if (rule.op != "*") text += ", op = \"" + rule.op + "\"";
  if (rule.role != "*") text += ", role = \"" + rule.role + "\"";
  if (rule.point != "*") text += ", point = \"" + rule.point + "\"";
  return text;
}

}  // namespace

RuleBook::RuleBook(const Policy& policy, const Graph& graph, const SiteTable& sites)
    : policy_(policy), graph_(graph), sites_(sites), used_(policy.rules.size()) {
  const bool has_places =
      std::ranges::any_of(policy.rules, [](const PolicyRule& r) { return r.place.has_value(); });
  if (has_places) places_.emplace(graph);
}

// Whether the rule's layer and place have this node.
bool RuleBook::is_at(const PolicyRule& rule, const Node& node) const {
  return glob_match(rule.layer, layer_of(graph_, node)) &&
         (!rule.place || places_->has(*rule.place, node));
}

// The same for a site, which may be a stored value's.
bool RuleBook::is_at(const PolicyRule& rule, const Site& site) const {
  if (!glob_match(rule.layer, site.layer)) return false;
  if (!rule.place) return true;
  const Node* node = is_in_graph(site) ? node_of(site) : nullptr;
  return node != nullptr ? places_->has(*rule.place, *node)
                         : places_->has_layer(*rule.place, site.layer);
}

// The site's node in this graph, or null.
const Node* RuleBook::node_of(const Site& site) const {
  const auto found =
      std::ranges::find_if(graph_.nodes, [&](const Node& node) { return node.id == site.node; });
  return found == graph_.nodes.end() ? nullptr : &*found;
}

const Format* RuleBook::compute(const Node& forward) {
  const Format* format = nullptr;
  for (size_t i = 0; i < policy_.rules.size(); ++i) {
    const PolicyRule& rule = policy_.rules[i];
    if (!rule.decides_compute() || !is_at(rule, forward) || !glob_match(rule.op, forward.op)) {
      continue;
    }
    used_[i] = true;
    format = rule.compute;
  }
  return format;
}

bool RuleBook::autocast_off(const Node& forward) {
  bool off = false;
  for (size_t i = 0; i < policy_.rules.size(); ++i) {
    const PolicyRule& rule = policy_.rules[i];
    if (!rule.autocast_off || !is_at(rule, forward) || !glob_match(rule.op, forward.op)) continue;
    used_[i] = off = true;
  }
  return off;
}

const Accumulator* RuleBook::accumulator(const Node& node, const std::string& forward_op) {
  const Accumulator* accumulator = nullptr;
  for (size_t i = 0; i < policy_.rules.size(); ++i) {
    const PolicyRule& rule = policy_.rules[i];
    if (rule.accumulator == nullptr || !is_at(rule, node) ||
        !(glob_match(rule.op, node.op) || glob_match(rule.op, forward_op))) {
      continue;
    }
    used_[i] = true;
    accumulator = rule.accumulator;
  }
  return accumulator;
}

double RuleBook::loss_scale(const Node& forward) {
  double scale = 1;
  for (size_t i = 0; i < policy_.rules.size(); ++i) {
    const PolicyRule& rule = policy_.rules[i];
    if (!rule.loss_scale || !is_at(rule, forward) || !glob_match(rule.op, forward.op)) continue;
    used_[i] = true;
    scale = *rule.loss_scale;
  }
  return scale;
}

RuleBook::SiteRule RuleBook::at_site(int32_t site) {
  SiteRule found;
  if (site < 0) return found;
  const Site& s = sites_.sites.at(static_cast<size_t>(site));
  for (size_t i = 0; i < policy_.rules.size(); ++i) {
    const PolicyRule& rule = policy_.rules[i];
    if (rule.format == nullptr && !rule.rounding) continue;
    // What is stored matches only rules that name the point, never "*".
    const bool of_storage = rule.point == to_string(Point::kStorage);
    if (of_storage != (s.point == Point::kStorage)) continue;
    if (!glob_match(rule.op, s.op) || !glob_match(rule.role, to_string(s.role)) ||
        !glob_match(rule.point, to_string(s.point)) || !is_at(rule, s)) {
      continue;
    }
    used_[i] = true;
    if (rule.format != nullptr) found.format = rule.format;
    if (rule.rounding) found.rounding = rule.rounding;
  }
  return found;
}

std::string RuleBook::hint(const PolicyRule& rule) const {
  if (rule.place && places_->is_empty(*rule.place)) {
    return rule.place->part == PlacePart::kBlocks
               ? "blocks are numbered modules with weights in their products (h.0, layers.3): the "
                 "model has none; name its layers"
               : "the model has no product of weights";
  }
  std::set<std::string> layers, ops_there, roles_there;
  for (const Node& node : graph_.nodes) {
    layers.insert(layer_of(graph_, node));
    const bool forward_only =
        rule.decides_compute() || rule.autocast_off || rule.loss_scale.has_value();
    if (is_at(rule, node) && !(forward_only && node.is_backward())) {
      ops_there.insert(node.op);
    }
  }
  if (ops_there.empty()) {
    const bool is_glob = rule.layer.find_first_of("*?") != std::string::npos;
    std::string text = "layers: " + listed(layers);
    const std::string nearest =
        is_glob ? "" : did_you_mean(rule.layer, {layers.begin(), layers.end()});
    return nearest.starts_with("did") ? nearest + " " + text : text;
  }
  const bool op_there = std::any_of(ops_there.begin(), ops_there.end(),
                                    [&](const std::string& op) { return glob_match(rule.op, op); });
  if (!op_there) {
    const bool forward_only = rule.decides_compute() || rule.autocast_off || rule.loss_scale;
    return (forward_only ? "forward ops there: " : "ops there: ") + listed(ops_there);
  }
  if (rule.accumulator != nullptr) return "no op there has a sum of products";
  for (const Site& site : sites_.sites) {
    if (site.point != Point::kAccumulator && is_in_graph(site) && is_at(rule, site) &&
        glob_match(rule.op, site.op)) {
      roles_there.insert(std::string(to_string(site.role)) + " " +
                         std::string(to_string(site.point)));
    }
  }
  return "values there: " + listed(roles_there) +
         "; the optimizer's formats are set in [optimizer] and [storage]";
}

// Steps of a capture may take several ways through a model; all their graphs share one table of
// sites. A site of another graph has no node here.
bool RuleBook::is_for_another_graph(const PolicyRule& rule) const {
  if (rule.place && places_->is_empty(*rule.place)) return false;
  std::set<std::string> nodes;
  for (const Node& node : graph_.nodes) nodes.insert(node.id);
  return std::ranges::any_of(sites_.sites, [&](const Site& site) {
    return is_in_graph(site) && !nodes.contains(site.node) && glob_match(rule.layer, site.layer) &&
           glob_match(rule.op, site.op);
  });
}

void RuleBook::report_unused(ProblemList& problems) const {
  for (size_t i = 0; i < used_.size(); ++i) {
    if (used_[i]) continue;
    const PolicyRule& rule = policy_.rules[i];
    if (is_for_another_graph(rule)) continue;
    problems.add("line " + std::to_string(rule.line) + ": [[rule]] " + quoted(rule) +
                     ": matches nothing in " + (graph_.name.empty() ? "the graph" : graph_.name),
                 hint(rule));
  }
}

}  // namespace lockstep
