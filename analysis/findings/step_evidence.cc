// See step_evidence.h.
#include "analysis/findings/step_evidence.h"

#include <cmath>

namespace lockstep {

bool StepEvidence::nonfinite(size_t site) const {
  return count[site] > 0 && (to_infinity[site] > 0 || nan[site] > 0 || std::isinf(abs_max[site]));
}

StepEvidence read_evidence(const RunFile& run, int lane, int64_t step) {
  return {.count = run.count(lane, "count", step),
          .source_zero = run.count(lane, "source_zero", step),
          .to_zero = run.count(lane, "to_zero", step),
          .to_infinity = run.count(lane, "to_infinity", step),
          .saturated = run.count(lane, "saturated", step),
          .nan = run.count(lane, "nan", step),
          .abs_max = run.moment(lane, "abs_max", step),
          .sum_sq = run.moment(lane, "sum_sq", step),
          .round_err_sq = run.moment(lane, "round_err_sq", step),
          .err_sq = run.moment(lane, "err_sq", step),
          .ref_sq = run.moment(lane, "ref_sq", step),
          .scale = run.scale(lane, step)};
}

StoredEvidence::StoredEvidence(const SiteTable& sites) {
  for (const Site& site : sites.sites) {
    if (is_storage(site)) sites_.push_back(static_cast<size_t>(site.id));
  }
}

void StoredEvidence::complete(StepEvidence& step) {
  if (last_.count.empty()) {
    last_ = step;
    return;
  }
  std::vector<size_t> missing;
  std::vector<size_t> measured;
  for (const size_t site : sites_) (step.count[site] == 0 ? missing : measured).push_back(site);
  const auto exchange = [&](auto member) {
    for (const size_t site : measured) (last_.*member)[site] = (step.*member)[site];
    for (const size_t site : missing) (step.*member)[site] = (last_.*member)[site];
  };
  using E = StepEvidence;
  for (const auto member :
       {&E::count, &E::source_zero, &E::to_zero, &E::to_infinity, &E::saturated, &E::nan}) {
    exchange(member);
  }
  for (const auto member :
       {&E::abs_max, &E::sum_sq, &E::round_err_sq, &E::err_sq, &E::ref_sq, &E::scale}) {
    exchange(member);
  }
}

}  // namespace lockstep
