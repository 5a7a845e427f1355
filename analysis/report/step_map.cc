// See step_map.h.
#include "analysis/report/step_map.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "analysis/run/health.h"

namespace lockstep {
namespace {

size_t index(const Site& site) {
  return static_cast<size_t>(site.id);
}

// At least one value where an infinity came in whose values are not counted.
double not_finite(const StepReading& step, const Site& site) {
  const size_t i = index(site);
  const StepCounts& c = step.counts;
  uint64_t values = c.to_infinity[i] + c.nan[i];
  if (values == 0 && c.nonfinite(i)) values = 1;
  return SiteHealth::rate(values, c.count[i]);
}

double zeroed(const StepReading& step, const Site& site) {
  const size_t i = index(site);
  return SiteHealth::rate(step.counts.to_zero[i],
                          step.counts.count[i] - step.counts.source_zero[i]);
}

// Rounding changes more than the values that become zero; where none does, the share is not
// underflow.
double zeroed_energy(const StepReading& step, const Site& site) {
  const size_t i = index(site);
  if (step.counts.to_zero[i] == 0) return 0;
  const double share = step.round_err_sq[i] / step.sum_sq[i];
  return std::isfinite(share) ? std::min(share, 1.0) : 0;
}

// Gradients only: a skipped step's updates are zero, too.
double vanished(const StepReading& step, const Site& site) {
  if (site.role != Role::kGradActivation && site.role != Role::kGradWeight) return 0;
  const size_t i = index(site);
  const StepCounts& c = step.counts;
  const bool all_zero = c.count[i] > 0 && c.source_zero[i] + c.to_zero[i] == c.count[i];
  return all_zero && step.reference_sum_sq[i] > 0 ? 1 : 0;
}

double saturated(const StepReading& step, const Site& site) {
  const size_t i = index(site);
  return SiteHealth::rate(step.counts.saturated[i],
                          step.counts.count[i] - step.counts.source_zero[i]);
}

double stagnant(const StepReading& step, const Site& site) {
  const UpdateRecord& update = step.updates[index(site)];
  return update.measured ? SiteHealth::rate(update.stats.stagnant, update.stats.count) : 0;
}

double swamped(const StepReading& step, const Site& site) {
  if (step.sums.empty()) return 0;
  const AccumulatorHealth& sums = step.sums[index(site)];
  return SiteHealth::rate(sums.swamped, sums.addends);
}

double flipped(const StepReading& step, const Site& site) {
  if (step.decisions.empty()) return 0;
  const DecisionStats& decisions = step.decisions[index(site)];
  return SiteHealth::rate(decisions.flipped, decisions.count);
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

void StepMapTally::add(int64_t step, const StepReading& reading) {
  const auto ends_later = [&](const auto& column) { return column.second >= step; };
  const auto column = std::ranges::find_if(empty_.columns, ends_later) - empty_.columns.begin();
  for (const Site& site : sites_.sites) {
    const size_t i = index(site);
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
