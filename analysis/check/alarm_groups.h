// The alarms of a check by lane and metric, and by their cause, so that a thousand near-equal ones
// are one answer.
#pragma once

#include <string>
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

// What was changed, or the first alarm of what follows from one change.
struct AlarmCause {
  const Alarm* first = nullptr;
  size_t following = 0;  // alarms that are its effects
};
// Each changed setting is a cause, as are other inputs, lost gradients and, without a changed
// setting, another schedule; all other alarms follow from the first of them. Without any, the
// alarms follow from the origin if the reference or the captured run has one; else each lane has
// its own first, the same place once.
std::vector<AlarmCause> causes_of(const std::vector<Alarm>& alarms);
// " (146 more alarms follow from it)"; "": none.
std::string following_text(const AlarmCause& cause);

}  // namespace lockstep
