// See shared_places.h.
#include "analysis/check/shared_places.h"

#include <algorithm>
#include <set>
#include <string>

#include "analysis/pair/parameter_state.h"
#include "src/graph/op.h"

namespace lockstep {
namespace {

using Layers = std::set<std::string>;

// A layer's name in the other run.
const std::string& name_after(const RunMatch& match, const std::string& layer) {
  const auto found = match.renamed_layers.find(layer);
  return found == match.renamed_layers.end() ? layer : found->second;
}

// Adds the layers, by their names in each run, in which an item has no partner in the same layer.
template <typename Item>
void add_changed(const std::vector<Item>& before, const std::vector<Item>& after,
                 const Pairing& pairing, const RunMatch& match, Layers& ours, Layers& theirs) {
  pairing.each(before, after, [&](const Item& a, const Item& b) {
    if (name_after(match, a.layer) == b.layer) return;
    ours.insert(a.layer);
    theirs.insert(b.layer);
  });
  for (const size_t i : pairing.free_before()) ours.insert(before[i].layer);
  for (const size_t j : pairing.free_after()) theirs.insert(after[j].layer);
}

// It moves values only, so its kind and shape say nothing of which values.
bool is_view(const std::string& op) {
  const std::span<const OpDef> all = ops();
  const auto found = std::ranges::find(all, op, &OpDef::name);
  return found != all.end() && found->elements.is_view;
}

}  // namespace

SharedPlaces shared_places(const RunFacts& before, const RunFacts& after, const RunMatch& match) {
  SharedPlaces shared;
  Layers ours, theirs;
  add_changed(before.nodes, after.nodes, match.nodes, match, ours, theirs);
  shared.has_changed_code = !ours.empty() || !theirs.empty();
  add_changed(before.sites, after.sites, match.sites, match, ours, theirs);
  for (size_t s = 0; s < before.sites.size(); ++s) {
    const SiteFacts& site = before.sites[s];
    const int at = match.sites.after_of(s);
    bool is_certain = false, is_doubtful = false;
    if (at >= 0) {
      const SiteFacts& here = after.sites[static_cast<size_t>(at)];
      const bool same_layer = name_after(match, site.layer) == here.layer;
      is_certain = is_parameter_state(site)
                       ? same_layer && site.shape == here.shape
                       : same_layer && !ours.contains(site.layer) && !theirs.contains(here.layer);
      is_doubtful = !is_certain && (!same_layer || is_view(site.op));
    }
    shared.certain.push_back(is_certain);
    shared.doubtful.push_back(is_doubtful);
  }
  return shared;
}

}  // namespace lockstep
