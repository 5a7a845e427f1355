// See lost_state.h.
#include "analysis/findings/lost_state.h"

#include <algorithm>
#include <set>
#include <utility>

#include "analysis/run/energy.h"

namespace lockstep {

// The worst optimizer state; a share of elements counts where the state divides.
std::optional<Finding> find_lost_state(const ShareTally& tally,
                                       const std::vector<OptimizerState>& states) {
  const auto state_of = [&](const Site& site) {
    const auto i = static_cast<size_t>(site.id);
    return i < states.size() ? states[i] : OptimizerState{};
  };
  const auto excess = [&](const Site& site) {  // over the limit, in multiples of it
    const SiteShares& s = tally.of(site);
    if (site.role != Role::kOptimizerState) return 0.0;
    const double elements =
        share_of(static_cast<double>(s.to_zero), static_cast<double>(s.nonzero));
    return std::max(s.mean(s.underflow) / kEnergyLimit,
                    state_of(site).divides ? elements / kStateLimit : 0);
  };
  const Site* worst = nullptr;
  std::set<std::string> layers;
  for (const Site& site : tally.sites()) {
    // A lost divisor makes weights jump, and comes before lost averages.
    const auto rank = [&](const Site& s) { return std::pair(state_of(s).divides, excess(s)); };
    if (excess(site) >= 1 && (worst == nullptr || rank(site) > rank(*worst))) worst = &site;
  }
  if (worst == nullptr) return std::nullopt;
  const SiteShares& s = tally.of(*worst);
  const bool divides = state_of(*worst).divides;
  Finding f = tally.finding(
      FindingKind::kStateUnderflow, *worst,
      divides ? share_of(static_cast<double>(s.to_zero), static_cast<double>(s.nonzero))
              : s.mean(s.underflow));
  layers.insert(worst->layer);
  for (const Site& site : tally.sites()) {
    if (excess(site) >= 1 && layers.insert(site.layer).second) f.consequences.push_back(site.id);
  }
  return f;
}

}  // namespace lockstep
