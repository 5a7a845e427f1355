// An alarm in words. Knows nothing of limits.
#pragma once

#include <string>

#include "analysis/check/check_result.h"
#include "src/record/run/run_reader.h"

namespace lockstep {

// "lane fp32, step 0: ln1 layer_norm output (model.py:12): the values are 1.0045 times as large as
// the baseline's; limit 1.0000013 times". No full stop.
std::string alarm_sentence(const Alarm& alarm);

// "ln1 layer_norm output", "fc accumulator", "parameter fc.weight"; "" of a number of the lane.
std::string alarm_place(const Alarm& alarm);
// Its numbers as text, in the metric's unit: of a size, how many times as large as the baseline's.
// All are empty for a finding.
struct AlarmNumbers {
  std::string value = {}, expected = {}, limit = {};
};
AlarmNumbers alarm_numbers(const Alarm& alarm);

// The metric, or the kind of finding.
std::string_view alarm_subject(const Alarm& alarm);

// Fills place, step and sentence from the lane's gravest finding of this kind.
void describe_finding(const RunFile& run, int lane, const std::string& kind, Alarm& alarm);

}  // namespace lockstep
