// Why lanes have no outcome: one rule for reports of one run and of two.
#pragma once

#include <cstdint>

#include "analysis/report/report.h"
#include "analysis/run/loss_noise.h"

namespace lockstep {

enum class WhyUnjudged : uint8_t {
  kPart,
  kSynced,
  kInference,
  kRecordedUpdates,
  kReferenceNotFinite,
  kShortCapture,
  kNotLearned
};
// The reason for the lanes of a run that are kTooShort or kUnjudged.
WhyUnjudged why_unjudged(const Report& report);

// From so many steps on the tail that decides an outcome is a tenth of the run: fewer captured
// steps end within the first steps of a training.
inline constexpr int64_t kJudgedSteps = kTailSteps * kTailDivisor;
// Captured steps, too few to show whether training converges.
bool is_short_capture(const Report& report);

}  // namespace lockstep
