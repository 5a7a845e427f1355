// The outcome of a lane, and why it has none.
#pragma once

#include <string_view>

#include "analysis/report/why_unjudged.h"

namespace lockstep {

// The outcome in a table. "not judged" for both reasons: the sentence above the table gives it.
std::string_view shown_outcome(Verdict verdict);
std::string_view to_string(WhyUnjudged why);  // "the reference's own loss is not finite"

}  // namespace lockstep
