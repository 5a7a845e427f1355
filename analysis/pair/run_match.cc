// See run_match.h. Sites and nodes are matched by structure, not by the hash of a file: layers may
// have been renamed, ops fused or added.
#include "analysis/pair/run_match.h"

#include <algorithm>

#include "analysis/findings/findings.h"
#include "analysis/pair/parameter_state.h"
#include "src/graph/json_text.h"
#include "src/graph/same_step.h"

namespace lockstep {
namespace {

template <typename Item>
std::map<std::string, std::vector<size_t>> by_layer(const std::vector<Item>& items) {
  std::map<std::string, std::vector<size_t>> layers;
  for (size_t i = 0; i < items.size(); ++i) layers[items[i].layer].push_back(i);
  return layers;
}

// The layers that `other` lacks, in the order of execution.
template <typename Item>
std::vector<std::string> own_layers(const std::vector<Item>& items,
                                    const std::map<std::string, std::vector<size_t>>& other) {
  std::vector<std::string> layers;
  for (const Item& item : items) {
    if (!other.contains(item.layer) && std::ranges::count(layers, item.layer) == 0) {
      layers.push_back(item.layer);
    }
  }
  return layers;
}

// By layer: the shapes of its weights.
using WeightShapes = std::map<std::string, std::vector<std::string>>;
WeightShapes weight_shapes(const RunFacts& run) {
  WeightShapes shapes;
  for (const SiteFacts& site : run.sites) {
    if (is_stored_weight(site)) shapes[site.layer].push_back(site.shape);
  }
  return shapes;
}

bool may_be_one(const NodeFacts&, const NodeFacts&) {
  return true;
}
bool may_be_one(const SiteFacts& a, const SiteFacts& b) {
  return !is_parameter_state(a) || a.shape == b.shape;
}

// Three passes: the same layer; a layer with another name, the same ops and weights of the same
// shapes; anywhere, in order.
template <typename Item, typename Equal>
Pairing match_by_layer(const std::vector<Item>& before, const std::vector<Item>& after, Equal equal,
                       WeightShapes weights_before, WeightShapes weights_after,
                       std::map<std::string, std::string>& renamed) {
  Pairing pairing(before.size(), after.size());
  const auto same = [&](size_t i, size_t j) { return equal(before[i], after[j]); };
  auto ours = by_layer(before), theirs = by_layer(after);
  for (const auto& [layer, items] : ours) {
    const auto found = theirs.find(layer);
    if (found != theirs.end()) pairing.pair_in_order(items, found->second, same);
  }
  std::vector<std::string> fresh = own_layers(after, ours);
  for (const std::string& layer : own_layers(before, theirs)) {
    const std::vector<size_t>& items = ours[layer];
    const auto found = std::ranges::find_if(fresh, [&](const std::string& candidate) {
      return !candidate.empty() && weights_before[layer] == weights_after[candidate] &&
             std::ranges::equal(items, theirs[candidate], same);
    });
    if (found == fresh.end()) continue;
    pairing.pair_in_order(items, theirs[*found], same);
    renamed[layer] = *found;
    fresh.erase(found);
  }
  pairing.pair_in_order(pairing.free_before(), pairing.free_after(), [&](size_t i, size_t j) {
    return same(i, j) && may_be_one(before[i], after[j]);
  });
  return pairing;
}

// By name, then the renamed ones by their shape, in order.
Pairing match_parameters(const std::vector<ParameterFacts>& before,
                         const std::vector<ParameterFacts>& after) {
  Pairing pairing(before.size(), after.size());
  pairing.pair_first([&](size_t i, size_t j) { return before[i].name == after[j].name; });
  pairing.pair_in_order(pairing.free_before(), pairing.free_after(),
                        [&](size_t i, size_t j) { return before[i].shape == after[j].shape; });
  return pairing;
}

bool is_judged(const LaneFacts& lane) {
  LaneInfo info;
  info.name = lane.name;
  info.is_reference = lane.name == kReferenceLane;
  return is_candidate(info);
}

LanePair pair_of(const LaneFacts& before, const LaneFacts& after) {
  return {.same_policy = before.policy_text == after.policy_text,
          .same_engine = before.engine == after.engine && before.target == after.target,
          .policy = policy_change(before.policy_text, after.policy_text)};
}

}  // namespace

std::vector<LanePair> match_lanes(const std::vector<LaneFacts>& before,
                                  const std::vector<LaneFacts>& after) {
  std::vector<LanePair> pairs;
  Pairing pairing(before.size(), after.size());
  const auto pair_where = [&](PairedBy by, const auto& belong_together) {
    const std::vector<size_t> open = pairing.free_before();
    pairing.pair_first([&](size_t i, size_t j) { return belong_together(before[i], after[j]); });
    for (const size_t i : open) {
      const int j = pairing.after_of(i);
      if (j < 0) continue;
      LanePair& pair = pairs.emplace_back(pair_of(before[i], after[static_cast<size_t>(j)]));
      pair.before = static_cast<int>(i);
      pair.after = j;
      pair.by = by;
    }
  };
  pair_where(PairedBy::kName,
             [](const LaneFacts& a, const LaneFacts& b) { return a.name == b.name; });
  pair_where(PairedBy::kPolicy, [](const LaneFacts& a, const LaneFacts& b) {
    return is_judged(a) && is_judged(b) && !a.policy_text.empty() && a.policy_text == b.policy_text;
  });
  if (pairing.free_before().size() == 1 && pairing.free_after().size() == 1) {
    pair_where(PairedBy::kPlace,
               [](const LaneFacts& a, const LaneFacts& b) { return is_judged(a) && is_judged(b); });
  }
  for (const size_t i : pairing.free_before()) pairs.push_back({.before = static_cast<int>(i)});
  for (const size_t j : pairing.free_after()) pairs.push_back({.after = static_cast<int>(j)});
  return pairs;
}

std::vector<EnvironmentDifference> environment_differences(
    const std::map<std::string, std::string>& before,
    const std::map<std::string, std::string>& after) {
  std::vector<EnvironmentDifference> differences;
  for (const auto& [name, value] : before) {
    const auto now = after.find(name);
    if (now != after.end() && now->second == value) continue;
    differences.push_back({name, value, now == after.end() ? "" : now->second});
  }
  for (const auto& [name, value] : after) {
    if (!before.contains(name)) differences.push_back({name, "", value});
  }
  return differences;
}

RunMatch match_runs(const RunFacts& before, const RunFacts& after) {
  RunMatch match;
  match.lanes = match_lanes(before.lanes, after.lanes);
  match.settings = setup_differences(after.options, before.options);
  match.environment = environment_differences(before.environment, after.environment);
  const WeightShapes weights_before = weight_shapes(before), weights_after = weight_shapes(after);
  match.nodes = match_by_layer(
      before.nodes, after.nodes,
      [](const NodeFacts& a, const NodeFacts& b) { return a.op == b.op; }, weights_before,
      weights_after, match.renamed_layers);
  std::map<std::string, std::string> renamed;  // as of the nodes
  match.sites = match_by_layer(
      before.sites, after.sites,
      [](const SiteFacts& a, const SiteFacts& b) { return a.is_of_same_kind(b); }, weights_before,
      weights_after, renamed);
  match.parameters = match_parameters(before.parameters, after.parameters);
  match.same_places =
      std::ranges::equal(before.sites, after.sites, [](const SiteFacts& a, const SiteFacts& b) {
        return a.layer == b.layer && a.is_of_same_kind(b);
      });
  match.same_step_graph =
      !before.step_graph.empty() && same_json(before.step_graph, after.step_graph);
  match.other_site = first_other_site(before.site_table, after.site_table);
  return match;
}

}  // namespace lockstep
