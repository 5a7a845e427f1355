// An alarm in words. Knows nothing of limits.
#pragma once

#include <string>

#include "analysis/check/check_result.h"
#include "src/record/run/run_file.h"

namespace lockstep {

// "lane fp32, step 0: ln1 layer_norm activation output (model.py:12): values are 1.0045 times as
// large as in the baseline; limit 1.0000013". No full stop.
std::string alarm_sentence(const Alarm& alarm);

// Fills place, step and sentence from the lane's gravest finding of this kind.
void describe_finding(const RunFile& run, int lane, const std::string& kind, Alarm& alarm);

}  // namespace lockstep
