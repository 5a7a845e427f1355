// Why lanes have no outcome: one rule for reports of one run and of two.
#pragma once

#include <cstdint>
#include <string_view>

#include "analysis/report/report.h"

namespace lockstep {

enum class WhyUnjudged : uint8_t { kSynced, kReferenceNotFinite, kShortCapture, kNotLearned };
// Of the lanes of a run that are kTooShort or kUnjudged.
WhyUnjudged why_unjudged(const Report& report);
// The outcome in a table. "not judged" for both reasons: the sentence above the table gives it.
std::string_view shown_outcome(Verdict verdict);
std::string_view to_string(WhyUnjudged why);  // "the reference's own loss is not finite"

// Captured steps, too few to show whether training converges.
bool is_short_capture(const Report& report);

}  // namespace lockstep
