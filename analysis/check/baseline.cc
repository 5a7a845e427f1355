// See baseline.h.
#include "analysis/check/baseline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <utility>

#include "src/capture/capture.h"

namespace lockstep {

namespace {

// PyTorch's kernels add in another order than ours: four times the scatter of the lane that repeats
// them.
constexpr double kOtherKernels = 4;
// Other roundings of the same numbers move a lane by about as much as rounding has moved it away
// from the reference: with limits of ten spreads and more, a fourth of that.
constexpr double kRoundingShare = 0.25;

// Root mean square of the distances of the centres: a single one may be small by luck.
double distance_of(const std::vector<Band>& bands, const std::vector<Band>& reference) {
  double sum = 0, count = 0;
  for (size_t s = 0; s < std::min(bands.size(), reference.size()); ++s) {
    const double apart = bands[s].centre - reference[s].centre;
    if (!std::isfinite(apart)) continue;
    sum += apart * apart;
    ++count;
  }
  return count > 0 ? std::sqrt(sum / count) : 0;
}

void widen(std::vector<Band>& bands, const std::vector<Band>& reference, double times,
           double share) {
  const double moved = share * distance_of(bands, reference);
  for (size_t s = 0; s < std::min(bands.size(), reference.size()); ++s) {
    bands[s].spread = std::max({bands[s].spread, times * reference[s].spread, moved});
  }
}

// Widens bands for what an ensemble of replays cannot show. A weight moved by one FP32 ulp rounds
// to the same BF16 number, so the members of a narrow lane round in the same way. A captured run
// has the same numbers in all.
void widen_bands(const std::vector<LaneFacts>& lanes, Ensemble& ensemble) {
  if (ensemble.lanes.empty()) return;
  const auto of = [](LaneBands& lane, MetricId id) -> std::vector<Band>& {
    return lane.bands[static_cast<size_t>(id)];
  };
  LaneBands& reference = ensemble.lanes[0];
  for (size_t i = 1; i < ensemble.lanes.size(); ++i) {
    LaneBands& lane = ensemble.lanes[i];
    const bool is_captured = lanes[i].name == kCapturedLane;
    for (const MetricId id : {MetricId::kFirstLoss, MetricId::kEndLoss, MetricId::kHeldOutLoss,
                              MetricId::kFirstGradient, MetricId::kGradient}) {
      widen(of(lane, id), of(reference, id), is_captured ? kOtherKernels : 0,
            is_captured ? 2 * kRoundingShare : kRoundingShare);
    }
    for (Band& gap : of(lane, MetricId::kLossGap)) {
      gap.spread = std::max(gap.spread, of(lane, MetricId::kEndLoss)[0].spread);
    }
  }
}

}  // namespace

Baseline make_baseline(const RunFile& run, std::span<const RunSummary> ulps,
                       std::span<const RunSummary> seeds) {
  Baseline baseline;
  baseline.run = facts_without_twins(run);
  RunOptions& options = baseline.run.options;
  if (!options.capture_hash.empty()) {
    options.model = std::filesystem::path(options.model).filename().string();  // without its folder
  }
  baseline.policy_texts = std::exchange(options.policy_texts, {});
  const size_t lanes = baseline.run.lanes.size();
  baseline.ensembles[static_cast<size_t>(Draw::kSame)] = make_ensemble(ulps);
  baseline.ensembles[static_cast<size_t>(Draw::kOther)] = make_ensemble(seeds);
  pool_drift(baseline.ensembles[static_cast<size_t>(Draw::kOther)]);
  for (Ensemble& ensemble : baseline.ensembles) widen_bands(baseline.run.lanes, ensemble);
  for (size_t lane = 0; lane < lanes; ++lane) {
    std::set<std::string> kinds;
    for (const std::span<const RunSummary> runs : {ulps, seeds}) {
      for (const RunSummary& one : runs) {
        kinds.insert(one.lanes[lane].findings.begin(), one.lanes[lane].findings.end());
      }
    }
    baseline.findings.emplace_back(kinds.begin(), kinds.end());
    baseline.step_bits.push_back(ulps[0].lanes[lane].step_bits);
  }
  return baseline;
}

std::string subject_text(const RunFacts& run, const Metric& metric, size_t subject) {
  switch (metric.of) {
    case MetricOf::kSite:
      return run.sites.at(subject).label();
    case MetricOf::kParameter:
      return "parameter " + run.parameters.at(subject).name;
    case MetricOf::kGroup:
      return fmt::format("parameter group {}", subject);
    case MetricOf::kLane:
      break;
  }
  return "";
}

}  // namespace lockstep
