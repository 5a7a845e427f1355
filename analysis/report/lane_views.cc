// See lane_views.h.
#include "analysis/report/lane_views.h"

#include <algorithm>
#include <limits>

#include "analysis/findings/intended_infinities.h"

namespace lockstep {
namespace {

// The reading of a step that has counts alone: measures of anything else find no share.
StepReading counted_only(const StepCounts& counts) {
  const std::vector<double> none(counts.size(), std::numeric_limits<double>::quiet_NaN());
  return {.counts = counts,
          .sum_sq = none,
          .round_err_sq = none,
          .reference_sum_sq = none,
          .updates = std::vector<UpdateRecord>(counts.size())};
}

StepMap read_map(const RunFile& run, int lane, int64_t end) {
  StepMapTally tally(run.sites(), run.steps());  // the same columns for all lanes
  IntendedInfinities intended(run.sites());
  const std::vector<int64_t> samples = run.sums_steps(lane);
  for (int64_t step = 0; step < end; ++step) {
    if (!run.has_counts(step)) continue;
    if (!run.is_measured(step)) {
      tally.add(step, counted_only(intended.read_counts(run, lane, step)));
      continue;
    }
    StepReading reading{.counts = intended.read_counts(run, lane, step),
                        .sum_sq = run.moment(lane, "sum_sq", step),
                        .round_err_sq = run.moment(lane, "round_err_sq", step),
                        .reference_sum_sq = run.moment(0, "sum_sq", step),
                        .updates = run.updates(lane, step),
                        .decisions = run.decisions_at(lane, step)};
    const auto sample = std::ranges::lower_bound(samples, step);
    if (sample != samples.end() && *sample == step) {
      reading.sums = run.sums_at(lane, static_cast<size_t>(sample - samples.begin()));
    }
    tally.add(step, reading);
  }
  return tally.map();
}

}  // namespace

LaneViews read_lane_views(const RunFile& run, int lane, const std::vector<Finding>& findings,
                          int64_t end) {
  LaneViews views;
  views.exponents = site_exponents(run, lane);
  for (int64_t step = 0; step < run.total_histogram_steps(lane); ++step) {
    views.exponent_steps += run.is_measured(step);
  }
  if (run.lanes()[static_cast<size_t>(lane)].is_reference) return views;
  views.map = read_map(run, lane, end);
  views.growth = error_growth(run, lane);
  for (const Finding& finding : findings) {
    if (views.chains.size() == kMostChains) break;
    if (finding.site >= 0) views.chains.push_back(fault_chain(run, lane, finding));
  }
  return views;
}

}  // namespace lockstep
