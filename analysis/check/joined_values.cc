// See joined_values.h.
#include "analysis/check/joined_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "src/core/text.h"

namespace lockstep {

std::vector<JoinedParameter> find_joined(const JudgedRun& run) {
  const Ensemble& ulps = run.baseline.ensemble(Draw::kSame);
  const size_t lane = run.reference_lane();
  if (ulps.lanes.empty() || lane == run.lane_here.size()) return {};
  const LaneBands& before = ulps.lanes[lane];
  const LaneSummary& now = run.lane_now(lane);
  std::vector<double> octaves_before, octaves_now;
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  for (size_t p = 0; p < run.baseline.run.parameters.size(); ++p) {
    const int site = stored_site(run.baseline.run, p);
    const Band* band =
        site < 0 ? nullptr : before.find(MetricId::kFirstMagnitude, static_cast<size_t>(site));
    octaves_before.push_back(band == nullptr ? kUnknown : band->centre);
  }
  for (size_t p = 0; p < run.facts.parameters.size(); ++p) {
    const int site = stored_site(run.facts, p);
    const Measured* found =
        site < 0 ? nullptr : now.find(MetricId::kFirstMagnitude, static_cast<size_t>(site));
    octaves_now.push_back(found == nullptr ? kUnknown : found->value);
  }
  return joined_parameters(run.baseline.run, run.facts, run.match.parameters, octaves_before,
                           octaves_now, kSameDrawOctaves);
}

void name_joined(const JudgedRun& run, std::span<const JoinedParameter> joined,
                 CheckResult& result) {
  const auto names = [](const RunFacts& run, const std::vector<size_t>& parameters) {
    std::vector<std::string> all;
    for (const size_t p : parameters) all.push_back(run.parameters[p].name);
    return join(all, " and ");
  };
  for (const JoinedParameter& one : joined) {
    result.changes.push_back(fmt::format("parameter {} is {} here",
                                         names(run.baseline.run, one.before),
                                         names(run.facts, one.after)));
    for (const size_t p : one.before) {
      std::erase(result.missing, no_parameter_text("run", run.baseline.run.parameters[p]));
    }
    for (const size_t p : one.after) {
      std::erase(result.missing, no_parameter_text("baseline", run.facts.parameters[p]));
    }
  }
}

bool is_replaced(const JudgedRun& run, std::span<const JoinedParameter> joined) {
  size_t ours = run.match.parameters.free_before().size(),
         theirs = run.match.parameters.free_after().size();
  for (const JoinedParameter& one : joined) {
    ours -= one.before.size();
    theirs -= one.after.size();
  }
  return ours > 0 && theirs > 0;
}

std::vector<JoinedGradient> joined_gradients(const JudgedRun& run,
                                             std::span<const JoinedParameter> joined,
                                             const Ensemble& ensemble) {
  std::vector<JoinedGradient> found_gradients;
  const Metric& metric = metric_row(MetricId::kFirstGradient);
  for (size_t lane = 0; lane < ensemble.lanes.size(); ++lane) {
    if (run.lane_here[lane] < 0) continue;
    const LaneSummary& now = run.lane_now(lane);
    for (const JoinedParameter& one : joined) {
      Band band{.centre = 0, .spread = 0, .always = true};
      double square_sum = 0;
      for (const size_t p : one.before) {
        const Band* found = ensemble.lanes[lane].find(metric.id, p);
        if (found == nullptr) continue;
        band.centre += std::exp2(2 * found->centre);
        band.spread = std::max(band.spread, found->spread);
      }
      for (const size_t p : one.after) {
        const Measured* found = now.find(metric.id, p);
        if (found != nullptr) square_sum += std::exp2(2 * found->value);
      }
      if (band.centre == 0) continue;  // a lane without this metric
      band.centre = std::log2(band.centre) / 2;
      found_gradients.push_back({lane, one.before.front(), band, {std::log2(square_sum) / 2}});
    }
  }
  return found_gradients;
}

}  // namespace lockstep
