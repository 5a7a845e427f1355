// See alarm_groups.h.
#include "analysis/check/alarm_groups.h"

#include <algorithm>

#include "analysis/check/alarm_sentence.h"

namespace lockstep {
namespace {

bool comes_before(const Alarm& a, const Alarm& b) {
  return a.site >= 0 && (b.site < 0 || a.site < b.site);
}

}  // namespace

std::vector<AlarmGroup> group_alarms(const std::vector<Alarm>& alarms) {
  std::vector<AlarmGroup> groups;
  for (const Alarm& alarm : alarms) {
    auto group = std::ranges::find_if(groups, [&](const AlarmGroup& g) {
      return g.lane == alarm.lane && g.subject == alarm_subject(alarm);
    });
    if (group == groups.end()) {
      groups.push_back(
          {.lane = alarm.lane, .subject = alarm_subject(alarm), .first = &alarm, .worst = &alarm});
      group = groups.end() - 1;
    }
    ++group->count;
    if (comes_before(alarm, *group->first)) group->first = &alarm;
    if (alarm.times > group->worst->times) group->worst = &alarm;
  }
  return groups;
}

}  // namespace lockstep
