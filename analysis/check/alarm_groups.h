// The alarms of a check by lane and metric, so that a thousand near-equal ones are one answer.
#pragma once

#include <string_view>
#include <vector>

#include "analysis/check/check_result.h"

namespace lockstep {

struct AlarmGroup {
  std::string_view lane, subject;  // subject: the metric, or a kind of finding
  size_t count = 0;
  const Alarm* first = nullptr;  // in the order of execution
  const Alarm* worst = nullptr;  // farthest beyond its limit
};
// In the order of `alarms`, which outlive the groups: that of the origin comes first.
std::vector<AlarmGroup> group_alarms(const std::vector<Alarm>& alarms);

}  // namespace lockstep
