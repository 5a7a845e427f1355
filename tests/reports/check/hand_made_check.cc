// See hand_made_check.h.
#include "tests/reports/check/hand_made_check.h"

#include <fmt/format.h>

#include "analysis/check/alarm_sentence.h"

namespace lockstep::testing {
namespace {

constexpr const char* kFrom = "13 runs from weights moved by one ulp";

Alarm at_site(const std::string& lane, const std::string& layer, int32_t site) {
  return {.lane = lane,
          .layer = layer,
          .op = "layer_norm",
          .role = "activation",
          .point = "output",
          .source_line = "model.py:12",
          .site = site,
          .limit_from = kFrom};
}

Alarm with_numbers(Alarm alarm, MetricId metric, double value, double expected, double limit) {
  alarm.metric = metric;
  alarm.value = value;
  alarm.expected = expected;
  alarm.limit = limit;
  alarm.times = (value - expected) / (limit - expected);
  alarm.sentence = alarm_sentence(alarm);
  return alarm;
}

Alarm finding(const std::string& lane) {
  Alarm alarm = at_site(lane, "head", 9);
  alarm.op = "linear";
  alarm.source_line = "model.py:30";
  alarm.finding = "overflow";
  alarm.step = 3;
  alarm.times = std::numeric_limits<double>::infinity();
  alarm.limit_from = std::string(kFrom) + ", none of which has such a finding";
  alarm.sentence = "head linear (model.py:30): a value reaches 1e5, fp16 ends at 65504";
  alarm.sentence = alarm_sentence(alarm);
  return alarm;
}

Alarm first_size(const std::string& lane, const std::string& layer, int32_t site, double value) {
  Alarm alarm = at_site(lane, layer, site);
  alarm.step = 0;
  return with_numbers(std::move(alarm), MetricId::kFirstMagnitude, value, 1.5, 1.5 + 0x1p-19);
}

}  // namespace

CheckResult regression() {
  CheckResult result;
  result.verdict = CheckVerdict::kRegression;
  result.run = "gpt.lscap";
  result.baseline = "gpt.baseline.json";
  result.alpha = 0.01;
  result.runs = 13;
  result.steps = 20;
  result.first_other_bits = 0;
  result.shared_nonfinite = 1;
  result.families = {{"fp32", MetricId::kFirstMagnitude, 40},
                     {"fp16", MetricId::kToZero, 40},
                     {"fp16", MetricId::kEndLoss, 1}};
  result.judged = 81;
  result.changes = {"layer_norm eps 1e-05 -> 1e-06 in 12 layers"};
  result.missing = {"lane bf16: the run has no such lane"};
  result.remarks = {"environment cpu: A here, B in the baseline"};
  Alarm loss{.lane = "fp16", .metric = MetricId::kEndLoss, .limit_from = kFrom};
  result.alarms = {first_size("fp32", "ln1", 3, 1.51), first_size("fp32", "ln2", 7, 1.52),
                   finding("fp16"),
                   with_numbers(std::move(loss), MetricId::kEndLoss, 2.5, 2.25, 2.375)};
  result.improvements = {
      with_numbers(at_site("fp16", "ln1", 3), MetricId::kToZero, 0.001, 0.25, 0.2)};
  result.ignored = {{.rule = "rounding, lane fp16, line 4",
                     .reason = "known",
                     .expires = "2027-01-31",
                     .alarms = 2},
                    {.rule = "error, line 9",
                     .reason = "was known",
                     .expires = "2026-01-31",
                     .has_expired = true}};
  return result;
}

CheckResult inconclusive() {
  CheckResult result;
  result.verdict = CheckVerdict::kInconclusive;
  result.run = "lenet";
  result.baseline = "gpt.baseline.json";
  result.alpha = 0.01;
  result.why_inconclusive = {"no site of the run has a counterpart in the baseline"};
  return result;
}

CheckResult failed() {
  CheckResult result;
  result.verdict = CheckVerdict::kError;
  result.run = "run.h5";
  result.baseline = "gpt.baseline.json";
  result.alpha = 0.01;
  result.problems = {"run.h5: truncated <at> 4096 bytes; run it again",
                     "rules.toml: line 3: \n::x"};
  return result;
}

CheckResult regression_named(const std::string& name) {
  CheckResult result = regression();
  result.run = result.baseline = name;
  for (std::vector<Alarm>* alarms : {&result.alarms, &result.improvements}) {
    for (Alarm& alarm : *alarms) {
      alarm.lane = alarm.layer = alarm.op = alarm.role = alarm.point = name;
      alarm.source_line = name + ":12";
      if (alarm.finding.empty()) alarm.sentence = alarm_sentence(alarm);
    }
  }
  for (JudgedFamily& family : result.families) family.lane = name;
  for (std::vector<std::string>* lines : {&result.changes, &result.missing, &result.remarks}) {
    lines->assign(1, name);
  }
  result.ignored[0].rule = result.ignored[0].reason = name;
  return result;
}

CheckResult many_alarms(size_t alarms, size_t lanes) {
  CheckResult result = regression();
  result.alarms.clear();
  for (size_t i = 0; i < alarms; ++i) {
    result.alarms.push_back(first_size(fmt::format("lane{}", i % lanes), fmt::format("ln{}", i),
                                       static_cast<int32_t>(i), 1.51));
  }
  return result;
}

}  // namespace lockstep::testing
