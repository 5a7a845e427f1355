// Which finding explains what became of a lane, and which lanes need explaining.
#pragma once

#include <cstdint>

#include "analysis/report/report.h"

namespace lockstep {

// The finding that explains the lane; null: none does.
const Finding* main_finding(const LaneReport& lane);
// Lanes with a sentence: candidates, and whatever broke.
bool has_sentence(const LaneReport& lane);

// The step in which a lane broke: where its main finding begins, else where its loss or the lane
// ends; -1: not known.
int64_t lane_break_step(const LaneReport& lane);

}  // namespace lockstep
