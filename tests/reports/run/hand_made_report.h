// A report of a run written by hand: FP32 and its twin, a lane that is fine, a lane that broke.
#pragma once

#include <limits>
#include <string>

#include "reports/run/section.h"

namespace lockstep::testing {

inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// A lane that is fine: its loss falls from 2 to `end` in 100 steps.
LaneReport lane(std::string name, double end, double accuracy);
Report hand_made();

// Something for every picture: of the lane pure-fp16, costs, ranges.
void add_pictures(Report& report);
// Of 4 log-probabilities, one of which the lane lacks; computed in the first two steps.
WatchedReport watched_log_probs();
// With an answer of `recommend`.
AdvisedReport advised(const Report& report);

}  // namespace lockstep::testing
