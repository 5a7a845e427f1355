// See why_unjudged.h.
#include "analysis/report/why_unjudged.h"

#include <algorithm>
#include <cmath>

#include "analysis/run/lane_outcomes.h"

namespace lockstep {

namespace {

bool has_gradients(const Report& report) {
  return std::ranges::any_of(report.sites.sites, [](const Site& site) {
    return site.role == Role::kGradActivation || site.role == Role::kGradWeight;
  });
}

}  // namespace

bool is_short_capture(const Report& report) {
  return !has_recorded_updates(report.options) && report.captured >= 0 &&
         report.options.part.empty() && report.steps < kJudgedSteps;
}

WhyUnjudged why_unjudged(const Report& report) {
  if (!report.options.part.empty()) return WhyUnjudged::kPart;
  if (has_recorded_updates(report.options)) {
    return has_gradients(report) ? WhyUnjudged::kRecordedUpdates : WhyUnjudged::kInference;
  }
  if (report.options.mode == LaneMode::kSynced) return WhyUnjudged::kSynced;
  if (!std::isfinite(report.reference().judgement.tail_loss)) {
    return WhyUnjudged::kReferenceNotFinite;
  }
  return is_short_capture(report) ? WhyUnjudged::kShortCapture : WhyUnjudged::kNotLearned;
}

}  // namespace lockstep
