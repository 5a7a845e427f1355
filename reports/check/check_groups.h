// The alarms of a check by lane and metric, so that a thousand near-equal ones are a row of a
// table.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "analysis/check/check_result.h"
#include "reports/writers/block.h"

namespace lockstep {

struct AlarmGroup {
  std::string_view lane, subject;  // subject: the metric, or a kind of finding
  size_t count = 0;
  const Alarm* first = nullptr;  // in the order of execution
  const Alarm* worst = nullptr;  // farthest beyond its limit
};
// In the order of `alarms`, which outlive the groups: that of the origin comes first.
std::vector<AlarmGroup> group_alarms(const std::vector<Alarm>& alarms);

// How many in each group, the first and the largest.
TableBlock group_table(const std::vector<AlarmGroup>& groups);
// One row each, of the alarms from `from` on.
TableBlock alarm_table(const std::vector<Alarm>& alarms, size_t from, size_t most);

// "ln1 layer_norm output (model.py:12)"; "the lane's loss" has no place: "the whole lane".
std::string place_and_line(const Alarm& alarm);
// By how many times a number passes its limit: "3.4"; "-" where none at all is allowed.
std::string excess_text(const Alarm& alarm);

}  // namespace lockstep
