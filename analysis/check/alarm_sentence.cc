// See alarm_sentence.h.
#include "analysis/check/alarm_sentence.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analysis/findings/finding_kinds.h"
#include "analysis/findings/findings.h"

namespace lockstep {
namespace {

// Enough digits to tell a ratio near 1 from 1: "1.0045", "1.0000013", "0.51", "37".
std::string ratio_text(double octaves) {
  const double ratio = std::exp2(octaves), apart = std::fabs(ratio - 1);
  if (apart == 0) return "1";
  if (apart >= 0.1 || !std::isfinite(ratio)) return two_digits(ratio);
  const int decimals = 1 + static_cast<int>(std::ceil(-std::log10(apart)));
  return fmt::format("{:.{}f}", ratio, decimals);
}

std::string lane_and_step(const Alarm& alarm) {
  std::string text = "lane " + alarm.lane;
  if (alarm.step >= 0) text += fmt::format(", step {}", alarm.step);
  return text;
}

std::string place(const Alarm& alarm) {
  std::string text;
  if (alarm.site >= 0) {
    text += fmt::format(": {} {} {} {}", alarm.layer.empty() ? "(no layer)" : alarm.layer, alarm.op,
                        alarm.role, alarm.point);
    if (!alarm.source_line.empty()) text += " (" + alarm.source_line + ")";
  } else if (!alarm.parameter.empty()) {
    text += ": " + alarm.parameter;
  }
  return text;
}

std::string what(const Alarm& a) {
  const Metric& metric = metric_row(a.metric);
  const double change = a.value - a.expected, allowed = a.limit - a.expected;
  switch (metric.unit) {
    case MetricUnit::kShare:
      return fmt::format("{} {} here, {} in the baseline; limit {}", metric.name,
                         share_text(a.value), share_text(a.expected), share_text(a.limit));
    case MetricUnit::kLoss:
      return fmt::format("{} {:.6g} here, {:.6g} in the baseline; limit {:.6g}", metric.name,
                         a.value, a.expected, a.limit);
    case MetricUnit::kOctaves:
      break;
  }
  if (a.metric == MetricId::kExponents) {
    return fmt::format("exponents lie {} octaves from the baseline's on average; limit {}",
                       two_digits(a.value), two_digits(a.limit));
  }
  return fmt::format("{} is {} times the baseline's; limit {}", metric.name, ratio_text(change),
                     ratio_text(allowed));
}

}  // namespace

std::string alarm_sentence(const Alarm& alarm) {
  if (alarm.finding == kSetting) {
    return alarm.sentence + (alarm.source_line.empty() ? "" : " (" + alarm.source_line + ")");
  }
  if (!alarm.finding.empty()) return lane_and_step(alarm) + ": " + alarm.sentence;
  std::string text = lane_and_step(alarm) + place(alarm) + ": " + what(alarm);
  if (!alarm.origin.empty()) {
    text += "; it comes from " + alarm.origin + ", which the baseline does not have";
  }
  if (!alarm.gone.empty()) text += "; before it, the baseline has " + alarm.gone;
  return text;
}

void describe_finding(const RunFile& run, int lane, const std::string& kind, Alarm& alarm) {
  const bool has_scaler = std::ranges::any_of(run.scalers(lane), [](const ScalerRecord& s) {
    return std::isfinite(s.scale) && s.scale != 1;
  });
  for (const Finding& finding : find_findings(run, lane)) {
    const FindingKindRow& row = row_of(finding.kind);
    if (row.name != kind) continue;
    alarm.sentence = row.sentence({finding, run.sites(), has_scaler, run.steps()});
    alarm.step = finding.first_step;
    if (finding.site >= 0) {
      alarm.site = finding.site;
      const Site& site = run.sites().sites[static_cast<size_t>(finding.site)];
      alarm.layer = site.layer;
      alarm.op = site.op;
      alarm.role = to_string(site.role);
      alarm.point = to_string(site.point);
      alarm.source_line = site.source_line;
    }
    return;
  }
}

}  // namespace lockstep
