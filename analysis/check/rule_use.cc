// See rule_use.h.
#include "analysis/check/rule_use.h"

#include <fmt/format.h>

#include <algorithm>

#include "analysis/check/alarm_sentence.h"

namespace lockstep {
namespace {

RulePattern::Subject subject_of(const Alarm& alarm) {
  return {.metric = alarm_subject(alarm),
          .lane = alarm.lane,
          .layer = alarm.site >= 0 ? alarm.layer : alarm.parameter,
          .role = alarm.role};
}

}  // namespace

RuleUse::RuleUse(const CheckRules& rules, std::chrono::sys_days today)
    : rules_(rules),
      today_(today),
      limits_used_(rules.limits.size()),
      alarms_ignored_(rules.ignores.size()) {}

bool RuleUse::has_expired(const IgnoreRule& rule) const {
  return std::chrono::sys_days(rule.expires) < today_;
}

const LimitRule* RuleUse::limit_for(const Alarm& alarm) {
  const RulePattern::Subject subject = subject_of(alarm);
  for (size_t i = rules_.limits.size(); i-- > 0;) {
    if (!rules_.limits[i].pattern.matches(subject)) continue;
    ++limits_used_[i];
    return &rules_.limits[i];
  }
  return nullptr;
}

void RuleUse::ignore(std::vector<Alarm>& alarms) {
  std::erase_if(alarms, [this](const Alarm& alarm) {
    for (size_t i = 0; i < rules_.ignores.size(); ++i) {
      const IgnoreRule& rule = rules_.ignores[i];
      if (has_expired(rule) || !rule.pattern.matches(subject_of(alarm))) continue;
      ++alarms_ignored_[i];
      return true;
    }
    return false;
  });
}

void RuleUse::report(CheckResult& result) const {
  for (size_t i = 0; i < rules_.limits.size(); ++i) {
    if (limits_used_[i] > 0) continue;
    result.remarks.push_back(fmt::format("{}: the limit of {} applies to no number here",
                                         rules_.path, rules_.limits[i].pattern.text()));
  }
  for (size_t i = 0; i < rules_.ignores.size(); ++i) {
    const IgnoreRule& rule = rules_.ignores[i];
    const bool is_over = has_expired(rule);
    const std::string expires = date_text(rule.expires);
    if (is_over) {
      result.remarks.push_back(
          fmt::format("{}: the ignore rule for {} expired on {} and is no longer applied ({})",
                      rules_.path, rule.pattern.text(), expires, rule.reason));
    } else if (alarms_ignored_[i] == 0) {
      result.remarks.push_back(fmt::format("{}: the ignore rule for {} matches no alarm; remove it",
                                           rules_.path, rule.pattern.text()));
    }
    result.ignored.push_back({.rule = rule.pattern.text(),
                              .reason = rule.reason,
                              .expires = expires,
                              .alarms = alarms_ignored_[i],
                              .has_expired = is_over});
  }
  for (const std::string& name : rules_.required) {
    const bool is_judged = std::ranges::any_of(result.families, [&](const JudgedFamily& family) {
      return metric_row(family.metric).name == name;
    });
    if (is_judged) continue;
    result.missing.push_back(
        fmt::format("{}: required by {}, and judged nowhere", name, rules_.path));
  }
}

}  // namespace lockstep
