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

// The rooms of a run: its layers, and one for all code outside of modules, where an op is its own
// layer (layer_of in ir.h). There a name says as little of which value is meant as the op does.
class Rooms {
 public:
  explicit Rooms(const RunFacts& run) {
    for (const NodeFacts& node : run.nodes) {
      if (node.layer == node.op) outside_.insert(node.layer);
    }
  }
  void add_changed(const std::string& layer) { changed_.insert(room_of(layer)); }
  bool is_changed(const std::string& layer) const { return changed_.contains(room_of(layer)); }
  bool has_changed() const { return !changed_.empty(); }

 private:
  std::string room_of(const std::string& layer) const {
    return outside_.contains(layer) ? std::string() : layer;
  }
  Layers outside_, changed_;
};

// Adds the layers, by their names in each run, in which an item has no partner in the same layer.
template <typename Item>
void add_changed(const std::vector<Item>& before, const std::vector<Item>& after,
                 const Pairing& pairing, const RunMatch& match, Rooms& ours, Rooms& theirs) {
  pairing.each(before, after, [&](const Item& a, const Item& b) {
    if (name_after(match, a.layer) == b.layer) return;
    ours.add_changed(a.layer);
    theirs.add_changed(b.layer);
  });
  for (const size_t i : pairing.free_before()) ours.add_changed(before[i].layer);
  for (const size_t j : pairing.free_after()) theirs.add_changed(after[j].layer);
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
  Rooms ours(before), theirs(after);
  add_changed(before.nodes, after.nodes, match.nodes, match, ours, theirs);
  shared.has_changed_code = ours.has_changed() || theirs.has_changed();
  add_changed(before.sites, after.sites, match.sites, match, ours, theirs);
  for (size_t s = 0; s < before.sites.size(); ++s) {
    const SiteFacts& site = before.sites[s];
    const int at = match.sites.after_of(s);
    bool is_certain = false, is_doubtful = false;
    if (at >= 0) {
      const SiteFacts& here = after.sites[static_cast<size_t>(at)];
      const bool same_layer = name_after(match, site.layer) == here.layer;
      is_certain = is_parameter_state(site) ? same_layer && site.shape == here.shape
                                            : same_layer && !ours.is_changed(site.layer) &&
                                                  !theirs.is_changed(here.layer);
      is_doubtful = !is_certain && (!same_layer || is_view(site.op));
    }
    shared.certain.push_back(is_certain);
    shared.doubtful.push_back(is_doubtful);
  }
  return shared;
}

}  // namespace lockstep
