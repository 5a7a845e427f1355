// Applies the rules of a check to its numbers and alarms, and keeps count of what each rule did: a
// rule that has expired, or that matched nothing, is named in the result.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "analysis/check/check_result.h"
#include "analysis/check/rules.h"

namespace lockstep {

class RuleUse {
 public:
  // `rules` must outlive this. Rules that expired before `today` are not applied.
  RuleUse(const CheckRules& rules, std::chrono::sys_days today);

  // The limit for a number, null: the measured one.
  const LimitRule* limit_for(const Alarm& alarm);
  // Moves alarms that a rule ignores out of `alarms`.
  void ignore(std::vector<Alarm>& alarms);
  // Adds to result: ignored, remarks, and required metrics that were judged nowhere to missing.
  void report(CheckResult& result) const;

 private:
  bool has_expired(const IgnoreRule& rule) const;

  const CheckRules& rules_;
  std::chrono::sys_days today_;
  std::vector<size_t> limits_used_, alarms_ignored_;  // by rule
};

}  // namespace lockstep
