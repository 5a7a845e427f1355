// See baseline.h.
#include "analysis/check/baseline.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "src/record/run/environment.h"
#include "src/record/run/options_json.h"

namespace lockstep {

Baseline make_baseline(const RunFile& run, std::span<const RunSummary> ulps,
                       std::span<const RunSummary> seeds) {
  Baseline baseline;
  baseline.environment = run.environment();
  RunOptions options = run.options();
  baseline.policy_texts = options.policy_texts;
  baseline.options_json = options_to_json(options);
  baseline.identity = identity_of(run);
  baseline.steps = run.steps();
  baseline.ensembles[static_cast<size_t>(Draw::kSame)] = make_ensemble(ulps);
  baseline.ensembles[static_cast<size_t>(Draw::kOther)] = make_ensemble(seeds);
  for (size_t lane = 0; lane < baseline.identity.lanes.size(); ++lane) {
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

std::string subject_text(const ModelIdentity& identity, const Metric& metric, size_t subject) {
  switch (metric.of) {
    case MetricOf::kSite:
      return identity.sites.at(subject).label();
    case MetricOf::kParameter:
      return "parameter " + identity.parameters.at(subject).name;
    case MetricOf::kGroup:
      return fmt::format("parameter group {}", subject);
    case MetricOf::kLane:
      break;
  }
  return "";
}

std::string key_of(const Baseline& baseline, size_t lane, MetricId metric, size_t subject) {
  const Metric& row = metric_row(metric);
  const std::string text = subject_text(baseline.identity, row, subject);
  return fmt::format("{}/{}{}", baseline.identity.lanes[lane].name, row.name,
                     text.empty() ? "" : "/" + text);
}

}  // namespace lockstep
