// See flipped_decisions.h.
#include "analysis/findings/flipped_decisions.h"

#include <set>
#include <string>

#include "analysis/findings/share_tally.h"

namespace lockstep {

std::optional<Finding> find_flipped_decisions(int lane, const SiteTable& sites,
                                              std::span<const DecisionStats> decisions,
                                              std::span<const DecisionStats> of_reference) {
  const auto share = [](const DecisionStats& d) {
    return share_of(static_cast<double>(d.flipped) + static_cast<double>(d.tied) / 2,
                    static_cast<double>(d.count));
  };
  const auto excess = [&](const Site& site) {
    const auto i = static_cast<size_t>(site.id);
    if (i >= decisions.size() || decisions[i].flipped + decisions[i].tied < kFewestFlips)
      return 0.0;
    return share(decisions[i]) - (i < of_reference.size() ? share(of_reference[i]) : 0);
  };
  const Site* worst = nullptr;
  for (const Site& site : sites.sites) {
    if (excess(site) < kFlippedShare) continue;
    if (worst == nullptr || excess(site) > excess(*worst)) worst = &site;
  }
  if (worst == nullptr) return std::nullopt;
  const DecisionStats& d = decisions[static_cast<size_t>(worst->id)];
  Finding f{.kind = FindingKind::kFlippedDecisions, .lane = lane, .site = worst->id};
  f.share = share(d);
  f.value = d.margin_max;
  f.events = d.flipped;
  f.ties = d.tied;
  f.events_of = d.count;
  std::set<std::string> layers = {worst->layer};
  for (const Site& site : sites.sites) {
    if (excess(site) >= kFlippedShare && layers.insert(site.layer).second) {
      f.consequences.push_back(site.id);
    }
  }
  return f;
}

}  // namespace lockstep
