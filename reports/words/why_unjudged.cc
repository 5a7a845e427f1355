// See why_unjudged.h.
#include "reports/words/why_unjudged.h"

#include <cmath>

namespace lockstep {
namespace {

// A replay of fewer captured steps ends within the first steps of a training: from here on the tail
// that decides an outcome is a tenth of the run.
constexpr int64_t kFewSteps = kTailSteps * kTailDivisor;

}  // namespace

bool is_short_capture(const Report& report) {
  return report.captured >= 0 && report.steps < kFewSteps;
}

WhyUnjudged why_unjudged(const Report& report) {
  if (report.options.mode == LaneMode::kSynced) return WhyUnjudged::kSynced;
  if (!std::isfinite(report.reference().judgement.tail_loss)) {
    return WhyUnjudged::kReferenceNotFinite;
  }
  return is_short_capture(report) ? WhyUnjudged::kShortCapture : WhyUnjudged::kNotLearned;
}

std::string_view shown_outcome(Verdict verdict) {
  return to_string(verdict == Verdict::kTooShort ? Verdict::kUnjudged : verdict);
}

std::string_view to_string(WhyUnjudged why) {
  switch (why) {
    case WhyUnjudged::kSynced:
      return "in synced mode every lane starts each step from the reference's weights";
    case WhyUnjudged::kReferenceNotFinite:
      return "the reference's own loss is not finite";
    case WhyUnjudged::kShortCapture:
      return "so few recorded steps do not show whether training converges";
    case WhyUnjudged::kNotLearned:
      break;
  }
  return "the reference's loss fell by no more than its batch noise";
}

}  // namespace lockstep
