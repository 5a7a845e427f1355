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
  if (rule.op != "*") text += ", op = \"" + rule.op + "\"";
  if (rule.role != "*") text += ", role = \"" + rule.role + "\"";
  if (rule.point != "*") text += ", point = \"" + rule.point + "\"";
  return text;
}

}  // namespace

RuleBook::RuleBook(const Policy& policy, const Graph& graph, const SiteTable& sites)
    : policy_(policy), graph_(graph), sites_(sites), used_(policy.rules.size()) {}

const Format* RuleBook::compute(const Node& forward) {
  const Format* format = nullptr;
  for (size_t i = 0; i < policy_.rules.size(); ++i) {
    const PolicyRule& rule = policy_.rules[i];
    if (rule.compute == nullptr || !glob_match(rule.layer, layer_of(graph_, forward)) ||
        !glob_match(rule.op, forward.op)) {
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
    if (!rule.autocast_off || !glob_match(rule.layer, layer_of(graph_, forward)) ||
        !glob_match(rule.op, forward.op)) {
      continue;
    }
    used_[i] = off = true;
  }
  return off;
}

const Accumulator* RuleBook::accumulator(const Node& node, const std::string& forward_op) {
  const Accumulator* accumulator = nullptr;
  for (size_t i = 0; i < policy_.rules.size(); ++i) {
    const PolicyRule& rule = policy_.rules[i];
    if (rule.accumulator == nullptr || !glob_match(rule.layer, layer_of(graph_, node)) ||
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
    if (!rule.loss_scale || !glob_match(rule.layer, layer_of(graph_, forward)) ||
        !glob_match(rule.op, forward.op)) {
      continue;
    }
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
    if (!glob_match(rule.layer, s.layer) || !glob_match(rule.op, s.op) ||
        !glob_match(rule.role, to_string(s.role)) || !glob_match(rule.point, to_string(s.point))) {
      continue;
    }
    used_[i] = true;
    if (rule.format != nullptr) found.format = rule.format;
    if (rule.rounding) found.rounding = rule.rounding;
  }
  return found;
}

std::string RuleBook::hint(const PolicyRule& rule) const {
  std::set<std::string> layers, ops_there, roles_there;
  for (const Node& node : graph_.nodes) {
    layers.insert(layer_of(graph_, node));
    const bool forward_only =
        rule.compute != nullptr || rule.autocast_off || rule.loss_scale.has_value();
    if (glob_match(rule.layer, layer_of(graph_, node)) && !(forward_only && node.is_backward())) {
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
    const bool forward_only = rule.compute != nullptr || rule.autocast_off || rule.loss_scale;
    return (forward_only ? "forward ops there: " : "ops there: ") + listed(ops_there);
  }
  if (rule.accumulator != nullptr) return "no op there has a sum of products";
  for (const Site& site : sites_.sites) {
    if (site.point != Point::kAccumulator && is_in_graph(site) &&
        glob_match(rule.layer, site.layer) && glob_match(rule.op, site.op)) {
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
