// Why lanes have no outcome: one rule for reports of one run and of two.
#pragma once

#include <cstdint>

#include "analysis/report/report.h"

namespace lockstep {

enum class WhyUnjudged : uint8_t { kSynced, kReferenceNotFinite, kShortCapture, kNotLearned };
// The reason for the lanes of a run that are kTooShort or kUnjudged.
WhyUnjudged why_unjudged(const Report& report);

// Captured steps, too few to show whether training converges.
bool is_short_capture(const Report& report);

}  // namespace lockstep
