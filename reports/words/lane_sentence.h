// A lane in at most three lines: outcome, step, place, cause and what to try.
#pragma once

#include <string>

#include "analysis/report/report.h"

namespace lockstep {

// "pure-fp16 broke at step 39. fc1 linear (model.py:41): its result reaches 1.1e5, ..."
std::string lane_sentence(const Report& report, const LaneReport& lane);

}  // namespace lockstep
