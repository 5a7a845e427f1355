// See run_changes.h.
#include "analysis/pair/run_changes.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace lockstep {
namespace {

// -1: not judged.
int rank_of(Verdict verdict) {
  constexpr Verdict kOrder[] = {Verdict::kFine, Verdict::kUnclear, Verdict::kWorse,
                                Verdict::kStalled, Verdict::kBroke};
  if (verdict == Verdict::kReference) return 0;
  const auto found = std::ranges::find(kOrder, verdict);
  return found == std::end(kOrder) ? -1 : static_cast<int>(found - kOrder);
}

struct ShareOf {
  std::string_view what;
  double (*rate)(const SiteHealth&);
};
constexpr ShareOf kShares[] = {
    {"to zero", [](const SiteHealth& h) { return h.to_zero_rate(); }},
    {"to infinity or NaN", [](const SiteHealth& h) { return h.nonfinite_rate(); }},
    {"saturated", [](const SiteHealth& h) { return h.saturated_rate(); }},
};

}  // namespace

LaneChange change_of(Verdict before, Verdict after) {
  const int old_rank = rank_of(before), new_rank = rank_of(after);
  if (old_rank < 0 || new_rank < 0) return LaneChange::kNotComparable;
  if (old_rank == new_rank) return LaneChange::kSame;
  return new_rank < old_rank ? LaneChange::kBetter : LaneChange::kWorse;
}

std::string_view to_string(LaneChange change) {
  switch (change) {
    case LaneChange::kSame:
      return "same";
    case LaneChange::kBetter:
      return "better";
    case LaneChange::kWorse:
      return "worse";
    case LaneChange::kNotComparable:
      break;
  }
  return "not comparable";
}

std::vector<FindingPair> match_findings(const std::vector<Finding>& before,
                                        const std::vector<Finding>& after,
                                        const SiteTable& before_sites, const SiteTable& after_sites,
                                        bool same_graph) {
  const auto label = [](const SiteTable& sites, const Finding& f) {
    return f.site < 0 ? "" : sites.sites[static_cast<size_t>(f.site)].label();
  };
  const auto is_same = [&](const Finding& old, const Finding& now) {
    if (same_graph) return is_same_finding(old, now);
    return old.kind == now.kind && label(before_sites, old) == label(after_sites, now);
  };
  Pairing pairing(before.size(), after.size());
  pairing.pair_first([&](size_t i, size_t j) { return is_same(before[i], after[j]); });
  std::vector<FindingPair> pairs;
  for (const size_t i : pairing.free_before()) pairs.push_back({static_cast<int>(i), -1});
  for (const size_t j : pairing.free_after()) pairs.push_back({-1, static_cast<int>(j)});
  for (size_t i = 0; i < before.size(); ++i) {
    const int j = pairing.after_of(i);
    if (j >= 0) pairs.push_back({static_cast<int>(i), j});
  }
  return pairs;
}

std::vector<ShareChange> share_changes(const std::vector<LayerHealth>& before,
                                       const std::vector<LayerHealth>& after) {
  std::map<std::pair<std::string, Role>, std::pair<SiteHealth, SiteHealth>> rows;
  for (const LayerHealth& row : before) rows[{row.layer, row.role}].first = row.worst;
  for (const LayerHealth& row : after) rows[{row.layer, row.role}].second = row.worst;
  std::vector<ShareChange> changes;
  for (const auto& [place, health] : rows) {
    for (const ShareOf& share : kShares) {
      const double old = share.rate(health.first), now = share.rate(health.second);
      if (std::fabs(now - old) < kLeastShareChange) continue;
      changes.push_back({place.first, place.second, share.what, old, now});
    }
  }
  std::ranges::stable_sort(changes, std::greater<>(), [](const ShareChange& change) {
    return std::fabs(change.after - change.before);
  });
  return changes;
}

}  // namespace lockstep
