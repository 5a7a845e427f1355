// A lane in at most three lines: outcome, step, place, cause and what to try.
#pragma once

#include <cstdint>
#include <string>

#include "reports/run/report.h"

namespace lockstep {

// "pure-fp16 broke at step 39. fc1 linear (model.py:41): its result reaches 1.1e5, ..."
std::string lane_sentence(const Report& report, const LaneReport& lane);

// The finding that this sentence is about; null: none.
const Finding* main_finding(const LaneReport& lane);
// Lanes with a sentence: candidates, and every lane that broke.
bool has_sentence(const LaneReport& lane);

// The step in which a lane broke: where its main finding begins, else where its loss or the lane
// ends; -1: not known.
int64_t lane_break_step(const LaneReport& lane);

}  // namespace lockstep
