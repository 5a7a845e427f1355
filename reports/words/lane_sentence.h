// A lane in at most three lines: outcome, step, place, cause and what to try.
#pragma once

#include <cstdint>
#include <string>

#include "analysis/report/report.h"

namespace lockstep {

// "pure-fp16 broke at step 39. fc1 linear (model.py:41): its result reaches 1.1e5, ..."
std::string lane_sentence(const Report& report, const LaneReport& lane);

// The finding that this sentence tells; null: none.
const Finding* main_finding(const LaneReport& lane);
// Lanes with a sentence: candidates, and whatever broke.
bool has_sentence(const LaneReport& lane);

// Of a lane that broke: where its main finding begins, else where its loss or the lane ends; -1:
// not known.
int64_t lane_break_step(const LaneReport& lane);

}  // namespace lockstep
