// See check_junit.h. Written by hand: with pugixml this file had 140 lines, not 129.
#include "reports/check/check_junit.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "analysis/check/alarm_sentence.h"
#include "reports/check/alarm_tables.h"
#include "reports/check/check_text.h"
#include "reports/writers/html_text.h"
#include "src/core/counted.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

constexpr size_t kShownInCase = 20;  // of a test case

struct TestCase {
  std::string group, name;
  std::string outcome = {};  // "failure", "error", "skipped"; empty: passed
  std::string type = {}, message = {}, text = {};
};

// The escapes of HTML's text are those of XML, and control characters are spelled out.
std::string xml_text(std::string_view text) {
  return html_text(text);
}

std::string alarm_lines(const CheckResult& result, const AlarmGroup& group) {
  std::vector<std::string> lines;
  for (const Alarm& alarm : result.alarms) {
    if (alarm.lane != group.lane || alarm_subject(alarm) != group.subject) continue;
    if (lines.size() == kShownInCase) {
      lines.push_back(fmt::format("+{} more", group.count - kShownInCase));
      break;
    }
    lines.push_back(
        xml_text(fmt::format("{}; the limit comes from {}", alarm.sentence, alarm.limit_from)));
  }
  return join(lines, "\n");
}

TestCase failure_of(const CheckResult& result, const AlarmGroup& group) {
  return {.group = std::string(group.lane),
          .name = std::string(group.subject),
          .outcome = "failure",
          .type = "regression",
          .message = group.first->sentence,
          .text = alarm_lines(result, group)};
}

std::vector<TestCase> cases_of(const CheckResult& result) {
  std::vector<TestCase> cases;
  const std::vector<AlarmGroup> groups = group_alarms(result.alarms);
  for (const AlarmGroup& group : groups) cases.push_back(failure_of(result, group));
  for (const JudgedFamily& family : result.families) {
    const std::string_view name = metric_row(family.metric).name;
    const bool failed = std::ranges::any_of(groups, [&](const AlarmGroup& group) {
      return group.lane == family.lane && group.subject == name;
    });
    if (!failed) cases.push_back({.group = family.lane, .name = std::string(name)});
  }
  for (const std::string& missing : result.missing) {
    cases.push_back({"missing", missing, "error", "missing", missing, ""});
  }
  for (const std::string& why : result.why_inconclusive) {
    cases.push_back({"not judged", why, "skipped", "", why, ""});
  }
  if (!result.problems.empty()) {
    cases.push_back({"check", "run", "error", "error", result.problems.front(),
                     xml_text(join(result.problems, "\n"))});
  }
  for (const Ignored& rule : result.ignored) {
    if (rule.alarms == 0) continue;
    cases.push_back({"ignored", rule.rule, "skipped", "",
                     fmt::format("{} ignored until {}: {}", counted(rule.alarms, "alarm"),
                                 rule.expires, rule.reason),
                     ""});
  }
  if (cases.empty()) {
    const bool is_identical = result.verdict == CheckVerdict::kIdentical;
    cases.push_back(
        {"check", "bits", is_identical ? "" : "skipped", "", check_headline(result), ""});
  }
  return cases;
}

std::string property(std::string_view name, std::string_view value) {
  return fmt::format("      <property name=\"{}\" value=\"{}\"/>\n", name, xml_text(value));
}

std::string case_text(const TestCase& test) {
  const std::string start = fmt::format("    <testcase classname=\"lockstep.{}\" name=\"{}\"",
                                        xml_text(test.group), xml_text(test.name));
  if (test.outcome.empty()) return start + "/>\n";
  const std::string type = test.type.empty() ? "" : fmt::format(" type=\"{}\"", test.type);
  return fmt::format("{}>\n      <{} message=\"{}\"{}>{}</{}>\n    </testcase>\n", start,
                     test.outcome, xml_text(test.message), type, test.text, test.outcome);
}

}  // namespace

std::string check_junit(const CheckResult& result) {
  const std::vector<TestCase> cases = cases_of(result);
  const auto count = [&](std::string_view outcome) {
    return std::ranges::count(cases, outcome, &TestCase::outcome);
  };
  const std::string counts =
      fmt::format("tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\"", cases.size(),
                  count("failure"), count("error"), count("skipped"));
  std::string out = fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites {0}>\n"
      "  <testsuite name=\"lockstep check {1}\" {0}>\n    <properties>\n",
      counts, xml_text(result.run));
  out += property("verdict", to_string(result.verdict)) + property("baseline", result.baseline) +
         property("alpha", fmt::format("{:g}", result.alpha)) +
         property("ensemble", to_string(result.draw)) +
         property("ensemble_runs", fmt::format("{}", result.runs)) +
         property("steps", fmt::format("{}", result.steps)) +
         property("judged", fmt::format("{}", result.judged));
  out += "    </properties>\n";
  for (const TestCase& test : cases) out += case_text(test);
  return out + "  </testsuite>\n</testsuites>\n";
}

}  // namespace lockstep
