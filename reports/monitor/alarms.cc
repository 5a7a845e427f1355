// What the run was warned of, and when.
#include <fmt/format.h>

#include <algorithm>

#include "reports/monitor/monitor_page.h"
#include "src/core/counted.h"

namespace lockstep {
namespace {

// Nothing where all values are of one rank and one micro-batch, as far as is known.
std::string origin_text(const MonitorReport& report, const LiveAlarm& alarm) {
  const bool is_one = std::ranges::none_of(
      report.alarms, [](const LiveAlarm& a) { return a.rank > 0 || a.micro_batch > 0; });
  if (is_one || (alarm.rank < 0 && alarm.micro_batch < 0)) return "";
  const std::string micro = fmt::format("micro-batch {}", alarm.micro_batch);
  if (alarm.rank < 0) return micro;
  const std::string of_rank = fmt::format("rank {}", alarm.rank);
  return alarm.micro_batch < 0 ? of_rank : of_rank + ", " + micro;
}

Blocks write_alarms(const MonitorReport& report) {
  constexpr size_t kMostAlarms = 50;
  Blocks blocks;
  for (const LiveAlarm& alarm : report.alarms) {
    if (blocks.size() == kMostAlarms) {
      blocks.push_back(paragraph(
          fmt::format("... and {} more; the JSON has all.", report.alarms.size() - kMostAlarms)));
      break;
    }
    std::string text = fmt::format("Step {}, {}", alarm.step, alarm.rule);
    const size_t toned = text.size();
    if (alarm.site >= 0) text += ", " + place_name(report.site(alarm.site));
    const std::string origin = origin_text(report, alarm);
    text += fmt::format("{}{}: {}", origin.empty() ? "" : ", ", origin, alarm.sentence);
    if (alarm.more > 0) text += fmt::format("; also at {}", counted(alarm.more, "other place"));
    blocks.push_back(paragraph(text + ".", Tone::kBad, toned));
  }
  return blocks;
}

}  // namespace

MonitorSection alarms_monitor_section() {
  return {"alarms", "Alarms", write_alarms};
}

}  // namespace lockstep
