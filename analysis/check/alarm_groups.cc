// See alarm_groups.h.
#include "analysis/check/alarm_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "analysis/check/alarm_sentence.h"
#include "src/capture/capture.h"
#include "src/core/counted.h"
#include "src/policy/policy.h"

namespace lockstep {
namespace {

bool comes_before(const Alarm& a, const Alarm& b) {
  return a.site >= 0 && (b.site < 0 || a.site < b.site);
}

bool is_setting(const Alarm& alarm) {
  return alarm.finding == kSetting;
}

// It says what was changed, not what follows from it.
bool is_change(const Alarm& alarm) {
  return std::ranges::count(change_alarms(), alarm.finding, &ChangeAlarm::name) > 0;
}

// Of a schedule, which is no setting.
bool is_rate(const Alarm& alarm) {
  return alarm.finding.empty() && alarm.metric == MetricId::kLearningRate;
}

bool is_one_cause(const Alarm& a, const Alarm& b) {
  if (alarm_subject(a) != alarm_subject(b)) return false;
  if (is_setting(a)) return a.sentence == b.sentence;
  return is_change(a) || is_rate(a) || a.site == b.site;
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

std::vector<AlarmCause> causes_of(const std::vector<Alarm>& alarms) {
  const bool has_setting = std::ranges::any_of(alarms, is_setting);
  const auto is_cause = [&](const Alarm& alarm) {
    return is_change(alarm) || (is_rate(alarm) && !has_setting);
  };
  const bool has_change = std::ranges::any_of(alarms, is_cause);
  const bool is_everywhere = std::ranges::any_of(alarms, [](const Alarm& alarm) {
    return alarm.lane == kReferenceLane || alarm.lane == kCapturedLane;
  });
  std::vector<AlarmCause> causes;
  std::map<std::string_view, size_t> cause_of;  // by lane
  std::vector<const Alarm*> rest;
  for (const Alarm& alarm : alarms) {
    const bool is_first_of_lane = !cause_of.contains(alarm.lane);
    const auto known = std::ranges::find_if(
        causes, [&](const AlarmCause& cause) { return is_one_cause(*cause.first, alarm); });
    if (is_first_of_lane) {
      cause_of[alarm.lane] = static_cast<size_t>(known - causes.begin());
    }
    const bool may_be_cause = has_change      ? is_cause(alarm)
                              : is_everywhere ? causes.empty()
                                              : is_first_of_lane;
    if (may_be_cause && known == causes.end()) {
      causes.push_back({.first = &alarm, .following = 0});
    } else {
      rest.push_back(&alarm);
    }
  }
  const bool is_by_lane = !has_change && !is_everywhere;
  for (const Alarm* alarm : rest) ++causes[is_by_lane ? cause_of[alarm->lane] : 0].following;
  return causes;
}

std::string following_text(const AlarmCause& cause) {
  if (cause.following == 0) return "";
  return fmt::format(" ({} from it)", cause.following == 1
                                          ? "1 more alarm follows"
                                          : counted(cause.following, "more alarm") + " follow");
}

}  // namespace lockstep
