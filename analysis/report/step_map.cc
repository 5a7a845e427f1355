// See step_map.h.
#include "analysis/report/step_map.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "analysis/run/health.h"

namespace lockstep {
namespace {

uint64_t nonzero_count(const TensorStats& stats) {
  return stats.count - stats.source_zero;
}

// At least one value where an infinity came in whose values are not counted.
double not_finite(const SiteReading& reading, const Site&) {
  uint64_t values = reading.nonfinite.to_infinity + reading.nonfinite.nan;
  if (values == 0 && reading.nonfinite.any()) values = 1;
  return SiteHealth::rate(values, reading.lane.stats.count);
}

double zeroed(const SiteReading& reading, const Site&) {
  return SiteHealth::rate(reading.lane.stats.to_zero, nonzero_count(reading.lane.stats));
}

// Rounding takes more than values that become zero; where none does it is no underflow.
double zeroed_energy(const SiteReading& reading, const Site&) {
  const TensorStats& stats = reading.lane.stats;
  if (stats.to_zero == 0) return 0;
  const double share = stats.round_err_sq / stats.sum_sq;
  return std::isfinite(share) ? std::min(share, 1.0) : 0;
}

// Gradients only: a skipped step's updates are zero, too.
double vanished(const SiteReading& reading, const Site& site) {
  if (site.role != Role::kGradActivation && site.role != Role::kGradWeight) return 0;
  const TensorStats& stats = reading.lane.stats;
  const bool all_zero = stats.count > 0 && stats.source_zero + stats.to_zero == stats.count;
  return all_zero && reading.reference.stats.sum_sq > 0 ? 1 : 0;
}

double saturated(const SiteReading& reading, const Site&) {
  return SiteHealth::rate(reading.lane.stats.saturated, nonzero_count(reading.lane.stats));
}

double stagnant(const SiteReading& reading, const Site&) {
  const UpdateRecord& update = reading.lane.update;
  return update.measured ? SiteHealth::rate(update.stats.stagnant, update.stats.count) : 0;
}

double swamped(const SiteReading& reading, const Site&) {
  return SiteHealth::rate(reading.lane.health.swamped, reading.lane.health.addends);
}

double flipped(const SiteReading& reading, const Site&) {
  return SiteHealth::rate(reading.lane.decisions.flipped, reading.lane.decisions.count);
}

constexpr StepMeasure kMeasures[] = {
    {"not finite", "share of the values that became infinite or NaN, or came in so", not_finite},
    {"zeroed energy", "share of the sum of squares lost by rounding where values became zero",
     zeroed_energy},
    {"zeroed", "share of the nonzero values that became zero", zeroed},
    {"vanished", "1: the gradient is all zeros, although the reference's is not", vanished},
    {"saturated", "share of the nonzero values set to the largest number", saturated},
    {"stagnant", "share of the updates that did not change the stored value", stagnant},
    {"swamped", "share of the products too small for the sum they join, in sampled steps", swamped},
    {"flipped", "share of the decisions that the lane's values would turn", flipped},
};

}  // namespace

std::span<const StepMeasure> step_measures() {
  return kMeasures;
}

StepMapTally::StepMapTally(const SiteTable& sites, int64_t steps) : sites_(sites) {
  std::map<std::string, uint32_t> rows;
  for (const Site& site : sites.sites) {
    const auto [row, is_new] =
        rows.try_emplace(site.layer, static_cast<uint32_t>(empty_.layers.size()));
    if (is_new) empty_.layers.push_back(site.layer);
    layer_of_.push_back(row->second);
    const auto role = std::ranges::find(roles_, site.role);
    role_of_.push_back(static_cast<size_t>(role - roles_.begin()));
    if (role == roles_.end()) roles_.push_back(site.role);
  }
  const int64_t columns = std::min(steps, kMostStepColumns);
  for (int64_t c = 0; c < columns; ++c) {
    empty_.columns.emplace_back(c * steps / columns, (c + 1) * steps / columns - 1);
  }
  worst_.resize(roles_.size() * std::size(kMeasures));
}

void StepMapTally::add(int64_t step, std::span<const SiteRecord> lane,
                       std::span<const SiteRecord> reference,
                       std::span<const NonfiniteCounts> nonfinite) {
  const auto ends_later = [&](const auto& column) { return column.second >= step; };
  const auto column = std::ranges::find_if(empty_.columns, ends_later) - empty_.columns.begin();
  for (const Site& site : sites_.sites) {
    const auto i = static_cast<size_t>(site.id);
    const SiteReading reading{lane[i], reference[i], nonfinite[i]};
    for (size_t m = 0; m < std::size(kMeasures); ++m) {
      const double share = kMeasures[m].share(reading, site);
      if (!(share > 0)) continue;
      std::vector<StepCell>& cells = worst_[role_of_[i] * std::size(kMeasures) + m];
      if (cells.empty()) cells.resize(empty_.layers.size() * empty_.columns.size());
      StepCell& cell = cells[layer_of_[i] * empty_.columns.size() + static_cast<size_t>(column)];
      if (share > cell.share) cell = {layer_of_[i], static_cast<uint32_t>(column), share, site.id};
    }
  }
}

StepMap StepMapTally::map() const {
  StepMap out = empty_;
  for (size_t g = 0; g < worst_.size(); ++g) {
    StepGrid grid{
        .role = roles_[g / std::size(kMeasures)], .measure = g % std::size(kMeasures), .cells = {}};
    std::ranges::copy_if(worst_[g], std::back_inserter(grid.cells),
                         [](const StepCell& cell) { return cell.share >= kLeastShownShare; });
    if (!grid.cells.empty()) out.grids.push_back(std::move(grid));
  }
  return out;
}

}  // namespace lockstep
