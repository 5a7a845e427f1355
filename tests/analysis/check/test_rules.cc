// Rules files: what they may say, that every mistake is reported at once with its line, and what
// limits, ignored alarms and required metrics do to a result.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "analysis/check/rule_use.h"
#include "analysis/check/rules.h"
#include "src/core/error.h"

namespace lockstep {
namespace {

using std::chrono::sys_days;
using std::chrono::year;

constexpr auto kDay = year(2027) / 1 / 31;

std::vector<std::string> problems_of(const std::string& text) {
  try {
    rules_from_toml(text, "rules.toml");
  } catch (const InputError& error) {
    return error.problems();
  }
  return {};
}

bool names(const std::vector<std::string>& problems, const std::string& part) {
  for (const std::string& problem : problems) {
    if (problem.find(part) != std::string::npos) return true;
  }
  MESSAGE("no problem names: ", part);
  for (const std::string& problem : problems) MESSAGE(problem);
  return false;
}

Alarm alarm_at(MetricId metric, std::string lane, std::string layer, std::string role) {
  return {.lane = std::move(lane),
          .layer = std::move(layer),
          .role = std::move(role),
          .metric = metric,
          .site = 0};
}

TEST_CASE("a rules file: every key") {
  const CheckRules rules = rules_from_toml(R"(version = 1
alpha = 0.001
required = ["to_zero"]
[[limit]]
metric = "to_zero"
lane = "fp16"
layer = "decoder.*"
role = "grad_*"
max = 0.01
[[limit]]
factor = 2
[[ignore]]
metric = "rounding"
reason = "known"
expires = 2027-01-31
)",
                                           "rules.toml");
  CHECK(rules.path == "rules.toml");
  CHECK(rules.alpha == 0.001);
  CHECK(rules.required == std::vector<std::string>{"to_zero"});
  REQUIRE(rules.limits.size() == 2);
  CHECK(rules.limits[0].max == 0.01);
  CHECK_FALSE(rules.limits[0].factor);
  CHECK(rules.limits[0].pattern.text() ==
        "to_zero, lane fp16, layer decoder.*, role grad_*, line 4");
  CHECK(rules.limits[1].factor == 2);
  CHECK(rules.limits[1].pattern.text() == "every metric, line 10");
  REQUIRE(rules.ignores.size() == 1);
  CHECK(rules.ignores[0].reason == "known");
  CHECK(rules.ignores[0].expires == kDay);
}

TEST_CASE("a rules file: all mistakes at once, each with its line") {
  const std::vector<std::string> problems = problems_of(R"(version = 2
alpha = 1.5
required = ["to_zeros", 3]
limits = 1
[[limit]]
metric = "roundin"
lanes = "x"
max = "much"
[[limit]]
role = "gradweight"
max = 1
factor = 2
[[limit]]
metric = "nonfinite"
factor = 2
[[limit]]
metric = "to_zero"
max = -1
[[limit]]
factor = 0
[[limit]]
[[ignore]]
reason = " "
expires = "2027-01-31"
[[ignore]]
metric = "to_zero"
)");
  CHECK(names(problems, "line 1: version = 2: must be 1"));
  CHECK(names(problems, "line 2: alpha = 1.5: 0 < alpha < 1 required"));
  CHECK(
      names(problems, "line 3: required has 'to_zeros': no such metric; did you mean 'to_zero'?"));
  CHECK(names(problems, "line 3: required has an element of type integer, all must be strings"));
  CHECK(names(problems, "line 4: limits is not a key of this table; did you mean 'limit'?"));
  CHECK(names(problems,
              "line 6: [[limit]] metric = 'roundin': no such metric; did you mean 'rounding'?"));
  CHECK(
      names(problems, "line 7: [[limit]] lanes is not a key of this table; did you mean 'lane'?"));
  CHECK(names(problems, "line 8: [[limit]] max is of type string, must be a number"));
  CHECK(names(problems,
              "line 10: [[limit]] role = 'gradweight': no such role; did you mean 'grad_weight'?"));
  CHECK(names(problems, "line 9: [[limit]] has max and factor"));
  CHECK(names(problems, "line 15: [[limit]] factor of nonfinite has no effect"));
  CHECK(names(problems, "line 18: [[limit]] max = -1: 0 <= max required, of to_zero"));
  CHECK(names(problems, "line 20: [[limit]] factor = 0: 0 < factor required"));
  CHECK(names(problems, "line 21: [[limit]] sets no limit"));
  CHECK(names(problems, "line 23: [[ignore]] reason = ' ': must say why"));
  CHECK(names(problems, "line 24: [[ignore]] expires is of type string, must be a date"));
  CHECK(names(problems, "line 25: [[ignore]] has no reason"));
  CHECK(names(problems, "line 25: [[ignore]] has no expires"));
  CHECK(problems.size() == 18);
}

TEST_CASE("an ignore rule may name what was changed, a limit may not") {
  const std::string ignore = "version = 1\n[[ignore]]\nmetric = \"setting\"\nlayer = \"bn*\"\n";
  const CheckRules rules =
      rules_from_toml(ignore + "reason = \"x\"\nexpires = 2027-01-31\n", "rules.toml");
  Alarm setting;
  setting.finding = kSetting;
  setting.layer = "bn1";
  std::vector<Alarm> alarms = {setting};
  RuleUse(rules, sys_days(kDay)).ignore(alarms);
  CHECK(alarms.empty());
  CHECK(names(problems_of("version = 1\n[[limit]]\nmetric = \"setting\"\nmax = 1\n"),
              "metric = 'setting': no such metric"));
}

TEST_CASE("a rules file without a version, or that is no TOML") {
  CHECK(names(problems_of(""), "version: missing"));
  CHECK(names(problems_of("version = \n"), "line 1: not TOML"));
  CHECK(problems_of("version = 1\n").empty());
}

TEST_CASE("limits: the last that matches counts, and one that matches nothing is a remark") {
  CheckRules rules = rules_from_toml(R"(version = 1
[[limit]]
factor = 2
[[limit]]
metric = "*rounding"
layer = "conv*"
max = -3
[[limit]]
lane = "bf16"
max = 1
)",
                                     "rules.toml");
  RuleUse use(rules, sys_days(kDay));
  CHECK(use.limit_for(alarm_at(MetricId::kToZero, "fp16", "conv1", "input"))->factor == 2);
  CHECK(use.limit_for(alarm_at(MetricId::kFirstRounding, "fp16", "conv1", "input"))->max == -3);
  CHECK(use.limit_for(alarm_at(MetricId::kRounding, "fp16", "fc", "input"))->factor == 2);
  CheckResult result;
  use.report(result);
  REQUIRE(result.remarks.size() == 1);
  CHECK(result.remarks[0] ==
        "rules.toml: the limit of every metric, lane bf16, line 8 applies to no number here");
}

TEST_CASE("ignored alarms are taken out and counted until the rule expires") {
  CheckRules rules = rules_from_toml(R"(version = 1
[[ignore]]
metric = "to_zero"
layer = "conv*"
reason = "known"
expires = 2027-01-31
[[ignore]]
role = "update"
reason = "never happens"
expires = 2027-02-28
)",
                                     "rules.toml");
  const std::vector<Alarm> all = {alarm_at(MetricId::kToZero, "fp16", "conv1", "grad_weight"),
                                  alarm_at(MetricId::kToZero, "fp16", "fc", "grad_weight"),
                                  alarm_at(MetricId::kRounding, "fp16", "conv1", "grad_weight")};
  {
    RuleUse use(rules, sys_days(kDay));  // the last day
    std::vector<Alarm> alarms = all;
    use.ignore(alarms);
    CHECK(alarms.size() == 2);
    CheckResult result;
    use.report(result);
    REQUIRE(result.ignored.size() == 2);
    CHECK(result.ignored[0].alarms == 1);
    CHECK_FALSE(result.ignored[0].has_expired);
    CHECK(result.ignored[0].expires == "2027-01-31");
    REQUIRE(result.remarks.size() == 1);
    CHECK(result.remarks[0].find("role update, line 7 matches no alarm") != std::string::npos);
  }
  {
    RuleUse use(rules, sys_days(kDay) + std::chrono::days(1));
    std::vector<Alarm> alarms = all;
    use.ignore(alarms);
    CHECK(alarms.size() == 3);
    CheckResult result;
    use.report(result);
    CHECK(result.ignored[0].has_expired);
    CHECK(result.ignored[0].alarms == 0);
    CHECK(names(result.remarks, "to_zero, layer conv*, line 2 expired on 2027-01-31"));
  }
}

TEST_CASE("a required metric that was judged nowhere is missing") {
  const CheckRules rules =
      rules_from_toml("version = 1\nrequired = [\"to_zero\", \"loss_gap\"]\n", "rules.toml");
  CheckResult result;
  result.families = {{"fp16", MetricId::kToZero, 3}};
  RuleUse(rules, sys_days(kDay)).report(result);
  REQUIRE(result.missing.size() == 1);
  CHECK(result.missing[0] == "loss_gap: required by rules.toml, and judged nowhere");
}

}  // namespace
}  // namespace lockstep
