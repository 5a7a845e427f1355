// A report of a run written by hand: FP32 and its twin, a lane that is fine, a lane that broke.
#pragma once

#include <string>

#include "reports/report.h"

namespace lockstep::testing {

// A lane that is fine: its loss falls from 2 to `end` in 100 steps.
LaneReport lane(std::string name, double end, double accuracy);
Report hand_made();

// Something for every picture: of the lane pure-fp16, costs, ranges, a recommendation.
void add_pictures(Report& report);

}  // namespace lockstep::testing
