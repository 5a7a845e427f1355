// See drift.h.
#include "analysis/findings/drift.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace lockstep {

void LossEffectTally::on_step(const StepRecord& record) {
  if (!run_.options.measuring.samples_sums(record.step)) return;
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  const LaneStep& lane = record.lanes[static_cast<size_t>(lane_)];
  ++samples_;
  squares_.resize(run_.sites.sites.size());
  for (size_t s = 0; s < squares_.size(); ++s) {
    const LossEffect effect = lane.alive ? lane.sites[s].effect : LossEffect{kNone, kNone};
    squares_[s].rounding += effect.rounding * effect.rounding;
    squares_[s].range += effect.range * effect.range;
  }
}

std::vector<double> LossEffectTally::sizes(double LossEffect::*part) const {
  std::vector<double> sizes(run_.sites.sites.size());
  for (size_t s = 0; s < squares_.size(); ++s) {
    sizes[s] = std::sqrt(squares_[s].*part / static_cast<double>(samples_));
  }
  return sizes;
}

LossEffectTally loss_effects(const RunFile& run, int lane) {
  LossEffectTally tally(view_of(run), lane);
  StepRecord record;
  record.lanes.resize(run.lanes().size());
  for (const int64_t step : run.sums_steps(lane)) {
    record.step = step;
    run.read_step(lane, step, /*histograms=*/false, record.lanes[static_cast<size_t>(lane)]);
    tally.on_step(record);
  }
  return tally;
}

std::optional<Finding> find_drift(int lane, const LossEffectTally& effects, const SiteTable& sites,
                                  const std::vector<std::string>& formats) {
  const std::vector<double> rounding = effects.sizes(&LossEffect::rounding);
  const std::vector<double> range = effects.sizes(&LossEffect::range);
  const auto total = [](const std::vector<double>& sizes) {
    return std::accumulate(sizes.begin(), sizes.end(), 0.0);
  };
  const bool of_range = total(range) > total(rounding);
  const std::vector<double>& sizes = of_range ? range : rounding;
  const double all = total(sizes);
  if (!(all > 0)) return std::nullopt;
  std::vector<int32_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(
      order, [&](int32_t a, int32_t b) { return sizes[size_t(a)] > sizes[size_t(b)]; });
  const auto worst = static_cast<size_t>(order.front());
  Finding f{.kind = FindingKind::kDrift,
            .lane = lane,
            .steps = effects.samples(),
            .site = order.front(),
            .share = sizes[worst] / all};
  f.value = sizes[worst];
  f.text = of_range ? "range" : "rounding";
  if (worst < formats.size()) f.format = formats[worst];
  for (size_t i = 1; i < std::min(kMostDriftSites, order.size()); ++i) {
    if (sizes[static_cast<size_t>(order[i])] > 0) f.consequences.push_back(order[i]);
  }
  return f;
}

}  // namespace lockstep
