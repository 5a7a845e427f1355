// What the run was warned of, and when.
#include <fmt/format.h>

#include <algorithm>

#include "reports/monitor/monitor_page.h"

namespace lockstep {
namespace {

// Nothing where all values are of one rank and one micro-batch, as far as is known.
std::string origin_text(const MonitorReport& report, const LiveAlarm& alarm) {
  const bool is_one = std::ranges::none_of(
      report.alarms, [](const LiveAlarm& a) { return a.rank > 0 || a.micro_batch > 0; });
  if (is_one || (alarm.rank < 0 && alarm.micro_batch < 0)) return "";
  if (alarm.micro_batch < 0) return fmt::format("rank {}", alarm.rank);
  return fmt::format("rank {}, micro-batch {}", std::max<int64_t>(alarm.rank, 0),
                     alarm.micro_batch);
}

Blocks write_alarms(const MonitorReport& report) {
  if (report.alarms.empty()) return {};
  TableBlock out;
  out.columns = {{"step"},
                 {"alarm", Align::kLeft},
                 {"place", Align::kLeft},
                 {"from", Align::kLeft, true},
                 {"what", Align::kLeft}};
  for (const LiveAlarm& alarm : report.alarms) {
    std::string what = alarm.sentence;
    if (alarm.more > 0) what += fmt::format("; {} more places", alarm.more);
    out.rows.push_back({fmt::format("{}", alarm.step), alarm.rule,
                        alarm.site < 0 ? "-" : place_name(report.site(alarm.site)),
                        origin_text(report, alarm), std::move(what)});
  }
  out.notes = {"A place is named once, and again after it was well in between."};
  return {table(std::move(out))};
}

}  // namespace

MonitorSection alarms_monitor_section() {
  return {"alarms", "Alarms", write_alarms};
}

}  // namespace lockstep
