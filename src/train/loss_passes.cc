// See loss_passes.h.
#include "src/train/loss_passes.h"

#include <map>
#include <set>
#include <string>

namespace lockstep {
namespace {

// The forward nodes that a value is computed from.
std::set<std::string> ancestors(const Graph& graph, const std::string& value) {
  std::set<std::string> found = {split_value_id(value).first};
  for (auto node = graph.nodes.rbegin(); node != graph.nodes.rend(); ++node) {
    if (node->is_backward() || !found.contains(node->id)) continue;
    for (const std::string& input : node->inputs) found.insert(split_value_id(input).first);
  }
  return found;
}

}  // namespace

bool has_scaler_per_loss(const Policy& policy, const Graph& step) {
  if (step.passes.size() < 2) return false;
  return policy.loss_scale_use.per_loss.value_or(find_loss_scaler(policy.loss_scale.kind).per_loss);
}

std::vector<std::vector<bool>> sites_of_passes(const Graph& step, const SiteTable& sites) {
  if (step.passes.empty()) return {std::vector<bool>(sites.sites.size(), true)};
  std::map<std::string, const Node*> nodes;
  for (const Node& node : step.nodes) nodes[node.id] = &node;
  std::vector<std::vector<bool>> found;
  for (size_t pass = 0; pass < step.passes.size(); ++pass) {
    const std::set<std::string> forward = ancestors(step, step.passes[pass].loss);
    std::vector<bool>& mine = found.emplace_back();
    for (const Site& site : sites.sites) {
      if (is_storage(site)) {
        mine.push_back(forward.contains(site.value));
        continue;
      }
      const auto node = nodes.find(site.node);
      if (node == nodes.end()) {  // the optimizer's sites come after the losses are added up
        mine.push_back(site.op == "all_reduce" && site.index == static_cast<int>(pass));
      } else if (node->second->is_backward()) {
        mine.push_back(node->second->pass == static_cast<int>(pass));
      } else {
        mine.push_back(forward.contains(site.node));
      }
    }
  }
  return found;
}

}  // namespace lockstep
