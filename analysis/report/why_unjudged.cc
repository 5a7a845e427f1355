// See why_unjudged.h.
#include "analysis/report/why_unjudged.h"

#include <cmath>

namespace lockstep {

bool is_short_capture(const Report& report) {
  return report.captured >= 0 && report.steps < kJudgedSteps;
}

WhyUnjudged why_unjudged(const Report& report) {
  if (report.options.mode == LaneMode::kSynced) return WhyUnjudged::kSynced;
  if (!std::isfinite(report.reference().judgement.tail_loss)) {
    return WhyUnjudged::kReferenceNotFinite;
  }
  return is_short_capture(report) ? WhyUnjudged::kShortCapture : WhyUnjudged::kNotLearned;
}

}  // namespace lockstep
