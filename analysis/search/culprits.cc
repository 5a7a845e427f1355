// See culprits.h.
#include "analysis/search/culprits.h"

#include <algorithm>

#include "analysis/search/trial_runs.h"

namespace lockstep {
namespace {

// With `background` low the run passes, with both it fails.
struct Suspects {
  LayerSet background, layers;
};

LayerSet united(LayerSet a, const LayerSet& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Parts of nearly equal size, at most one for each layer.
std::vector<LayerSet> parts_of(const LayerSet& layers, size_t count) {
  count = std::min(count, layers.size());
  std::vector<LayerSet> parts;
  for (size_t i = 0; i < count; ++i) {
    const auto at = [&](size_t k) {
      return layers.begin() + static_cast<int64_t>(k * layers.size() / count);
    };
    parts.emplace_back(at(i), at(i + 1));
  }
  return parts;
}

// Where no part fails alone. Nothing if the runs had to end.
std::vector<Suspects> first_that_fails(const Suspects& whole, const std::vector<LayerSet>& parts,
                                       const SetsFail& sets_fail) {
  std::vector<LayerSet> prefixes = {united(whole.background, parts.front())};  // passes
  for (size_t i = 1; i + 1 < parts.size(); ++i) {
    prefixes.push_back(united(prefixes.back(), parts[i]));
  }
  const std::vector<LayerSet> unknown(prefixes.begin() + 1, prefixes.end());
  const std::vector<bool> fails = unknown.empty() ? std::vector<bool>{} : sets_fail(unknown);
  if (fails.size() < unknown.size()) return {};
  const auto first = static_cast<size_t>(std::ranges::find(fails, true) - fails.begin());
  return {{prefixes[first], parts[first + 1]}};
}

}  // namespace

LayerSet find_culprits(const LayerSet& low, const SetsFail& sets_fail) {
  LayerSet culprits;
  std::vector<Suspects> open = {{{}, low}};
  while (!open.empty()) {
    std::vector<std::vector<LayerSet>> parts;  // of each
    std::vector<LayerSet> sets;                // to run
    const size_t count = std::max<size_t>(2, kLanesPerReplay / open.size());
    for (const Suspects& one : open) {
      parts.push_back(parts_of(one.layers, count));
      for (const LayerSet& part : parts.back()) sets.push_back(united(one.background, part));
    }
    const std::vector<bool> fails = sets_fail(sets);
    if (fails.size() < sets.size()) return {};
    std::vector<Suspects> next;
    size_t at = 0;
    for (size_t i = 0; i < open.size(); ++i) {
      std::vector<Suspects> found;
      for (const LayerSet& part : parts[i]) {
        if (fails[at++]) found.push_back({open[i].background, part});
      }
      if (found.empty()) found = first_that_fails(open[i], parts[i], sets_fail);
      if (found.empty()) return {};
      next.insert(next.end(), found.begin(), found.end());
    }
    open.clear();
    for (Suspects& one : next) {
      if (one.layers.size() == 1) {
        culprits.push_back(one.layers.front());
      } else {
        open.push_back(std::move(one));
      }
    }
    if (open.size() + culprits.size() > kMostSuspects) return {};
  }
  LayerSet in_order;
  for (const std::string& layer : low) {
    if (std::ranges::find(culprits, layer) != culprits.end()) in_order.push_back(layer);
  }
  return in_order;
}

}  // namespace lockstep
