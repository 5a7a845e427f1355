// Sums of counts by site, and the choice of the worst site of a layer.
#include "analysis/run/health.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace lockstep {
namespace {

auto severity(const SiteHealth& h) {
  return std::make_tuple(h.nonfinite_rate(), h.infinite_in_rate(), h.to_zero_rate(),
                         h.saturated_rate(), h.to_subnormal_rate());
}

}  // namespace

void HealthTally::add(int64_t step, bool is_measured, std::span<const SiteRecord> sites,
                      std::span<const NonfiniteCounts> nonfinite) {
  for (size_t i = 0; i < sites_.size(); ++i) {
    const TensorStats& stats = sites[i].stats;
    if (stats.count == 0) continue;
    SiteHealth& h = sites_[i];
    const uint64_t nonzero = stats.count - stats.source_zero;
    h.steps += 1;
    h.measured_steps += is_measured;
    h.count += stats.count;
    h.nonzero += nonzero;
    h.to_zero += stats.to_zero;
    h.to_subnormal += stats.to_subnormal;
    h.to_infinity += nonfinite[i].to_infinity;
    h.saturated += stats.saturated;
    h.nan += nonfinite[i].nan;
    const uint64_t lost =
        stats.to_zero + nonfinite[i].to_infinity + stats.saturated + nonfinite[i].nan;
    const double lost_rate = SiteHealth::rate(lost, nonzero);
    if (lost > 0 && lost_rate > h.worst_step_rate) {
      h.worst_step = step;
      h.worst_step_rate = lost_rate;
    }
    if (nonfinite[i].came_in) h.infinite_in_steps += 1;
    if (h.first_nonfinite_step < 0 && nonfinite[i].any()) h.first_nonfinite_step = step;
  }
}

void add_updates(const SiteTable& sites, std::span<const SiteRecord> step,
                 std::vector<Stagnation>& layers) {
  for (const Site& site : sites.sites) {
    const UpdateRecord& update = step[static_cast<size_t>(site.id)].update;
    if (site.role != Role::kUpdate || !update.measured) continue;
    auto row = std::find_if(layers.begin(), layers.end(),
                            [&](const Stagnation& s) { return s.layer == site.layer; });
    if (row == layers.end()) {
      row = layers.insert(layers.end(), Stagnation{});
      row->layer = site.layer;
    }
    row->stagnant += update.stats.stagnant;
    row->count += update.stats.count;
  }
}

std::vector<LayerHealth> layer_health(const SiteTable& sites,
                                      const std::vector<SiteHealth>& health) {
  std::vector<LayerHealth> rows;
  std::map<std::tuple<std::string, Role, bool>, size_t> row_of;
  for (const Site& site : sites.sites) {
    const SiteHealth& h = health[static_cast<size_t>(site.id)];
    if (h.steps == 0) continue;
    const auto [it, is_new] = row_of.try_emplace({site.layer, site.role, site.scaled}, rows.size());
    if (is_new) rows.push_back({.layer = site.layer, .role = site.role, .worst = {}});
    LayerHealth& row = rows[it->second];
    row.measured_sites += 1;
    if (!h.clean()) row.unclean_sites += 1;
    if (row.site < 0 || severity(h) > severity(row.worst)) {
      row.site = site.id;
      row.worst = h;
    }
  }
  return rows;
}

}  // namespace lockstep
