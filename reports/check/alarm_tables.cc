// See alarm_tables.h.
#include "reports/check/alarm_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analysis/check/alarm_sentence.h"
#include "analysis/findings/finding_kinds.h"
#include "reports/writers/number_text.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

constexpr size_t kShownLines = 20;

std::string step_text(const Alarm& alarm) {
  return alarm.step >= 0 ? fmt::format("{}", alarm.step) : "";
}

}  // namespace

void add_list(Blocks& blocks, const std::string& title, const std::vector<std::string>& lines) {
  if (lines.empty()) return;
  const size_t shown = std::min(lines.size(), kShownLines);
  std::vector<std::string> some;
  for (size_t i = 0; i < shown; ++i) some.push_back(printable(lines[i]));  // each stays a line
  if (lines.size() > shown) some.push_back(fmt::format("+{} more", lines.size() - shown));
  blocks.push_back(paragraph(title));
  blocks.push_back(verbatim(join(some, "\n")));
}

std::string place_and_line(const Alarm& alarm) {
  const std::string place = alarm_place(alarm);
  if (place.empty()) return alarm.finding == kSetting ? "the loop" : "the whole lane";
  return alarm.source_line.empty() ? place : fmt::format("{} ({})", place, alarm.source_line);
}

std::string excess_text(const Alarm& alarm) {
  return std::isfinite(alarm.times) ? two_digits(alarm.times) : "-";
}

TableBlock group_table(const std::vector<AlarmGroup>& groups) {
  TableBlock table;
  table.columns = {{"lane", Align::kLeft},
                   {"metric", Align::kLeft},
                   {"numbers"},
                   {"first in the order of execution", Align::kLeft},
                   {"excess"}};
  for (const AlarmGroup& group : groups) {
    table.rows.push_back({std::string(group.lane), std::string(group.subject),
                          with_thousands(group.count), place_and_line(*group.first),
                          excess_text(*group.worst)});
  }
  table.notes.push_back(
      "excess: the largest distance from the baseline, as a multiple of the allowed one; -: none "
      "is "
      "allowed.");
  return table;
}

TableBlock alarm_table(const std::vector<Alarm>& alarms, size_t from, size_t most) {
  TableBlock table;
  table.columns = {{"lane", Align::kLeft},
                   {"step"},
                   {"place", Align::kLeft},
                   {"metric", Align::kLeft},
                   {"here"},
                   {"baseline"},
                   {"limit"},
                   {"excess"}};
  const size_t end = std::min(alarms.size(), from + most);
  for (size_t i = from; i < end; ++i) {
    const Alarm& a = alarms[i];
    const AlarmNumbers numbers = alarm_numbers(a);
    table.rows.push_back({a.lane, step_text(a), place_and_line(a), std::string(alarm_subject(a)),
                          numbers.value, numbers.expected, numbers.limit, excess_text(a)});
  }
  if (end < alarms.size()) {
    table.notes.push_back(fmt::format("and {} more.", with_thousands(alarms.size() - end)));
  }
  return table;
}

}  // namespace lockstep
