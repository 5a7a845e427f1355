// See check_json.h.
#include "reports/check/check_json.h"

#include <nlohmann/json.hpp>

#include "reports/check/check_text.h"
#include "reports/writers/json_text.h"

namespace lockstep {
namespace {

using nlohmann::ordered_json;

std::string_view unit_name(MetricUnit unit) {
  switch (unit) {
    case MetricUnit::kShare:
      return "share";
    case MetricUnit::kOctaves:
      return "log2";
    case MetricUnit::kDistance:
      return "octaves";
    case MetricUnit::kLoss:
      return "loss";
    case MetricUnit::kYesNo:
      break;
  }
  return "yes_no";
}

// A key that does not apply is absent.
ordered_json alarm_json(const Alarm& alarm) {
  ordered_json out = {{"lane", alarm.lane}};
  if (alarm.step >= 0) out["step"] = alarm.step;
  const std::pair<const char*, const std::string&> texts[] = {
      {"layer", alarm.layer},         {"op", alarm.op},
      {"role", alarm.role},           {"point", alarm.point},
      {"parameter", alarm.parameter}, {"source_line", alarm.source_line}};
  for (const auto& [key, text] : texts) {
    if (!text.empty()) out[key] = text;
  }
  if (alarm.finding.empty()) {
    const Metric& metric = metric_row(alarm.metric);
    out["metric"] = metric.name;
    out["unit"] = unit_name(metric.unit);
    out["value"] = json_number(alarm.value);
    out["baseline"] = json_number(alarm.expected);
    out["limit"] = json_number(alarm.limit);
    out["excess"] = json_number(alarm.times);
  } else {
    out["finding"] = alarm.finding;
  }
  if (!alarm.origin.empty()) out["origin"] = alarm.origin;
  if (!alarm.gone.empty()) out["gone"] = alarm.gone;
  out["limit_from"] = alarm.limit_from;
  out["sentence"] = alarm.sentence;
  return out;
}

ordered_json alarms_json(const std::vector<Alarm>& alarms) {
  ordered_json out = ordered_json::array();
  for (const Alarm& alarm : alarms) out.push_back(alarm_json(alarm));
  return out;
}

}  // namespace

std::string check_json(const CheckResult& result) {
  ordered_json out = {{"format", "lockstep-check"},
                      {"format_version", kCheckJsonVersion},
                      {"verdict", to_string(result.verdict)},
                      {"exit_code", exit_code_of(result.verdict)},
                      {"headline", check_headline(result)},
                      {"run", result.run},
                      {"baseline", result.baseline},
                      {"alpha", result.alpha},
                      {"ensemble", to_string(result.draw)},
                      {"ensemble_runs", result.runs},
                      {"steps", result.steps},
                      {"judged", result.judged},
                      {"shared_nonfinite", result.shared_nonfinite}};
  if (result.first_other_bits >= 0) out["first_step_with_other_bits"] = result.first_other_bits;
  if (!result.baseline_note.empty()) out["baseline_note"] = result.baseline_note;
  if (!result.first_difference.empty()) out["first_difference"] = result.first_difference;
  if (!result.problems.empty()) out["problems"] = result.problems;
  out["alarms"] = alarms_json(result.alarms);
  out["improvements"] = alarms_json(result.improvements);
  out["families"] = ordered_json::array();
  for (const JudgedFamily& family : result.families) {
    out["families"].push_back({{"lane", family.lane},
                               {"metric", metric_row(family.metric).name},
                               {"judged", family.numbers}});
  }
  out["ignored"] = ordered_json::array();
  for (const Ignored& rule : result.ignored) {
    out["ignored"].push_back({{"rule", rule.rule},
                              {"reason", rule.reason},
                              {"expires", rule.expires},
                              {"expired", rule.has_expired},
                              {"alarms", rule.alarms}});
  }
  out["changes"] = result.changes;
  out["missing"] = result.missing;
  out["why_inconclusive"] = result.why_inconclusive;
  out["remarks"] = result.remarks;
  return json_page(out);
}

}  // namespace lockstep
