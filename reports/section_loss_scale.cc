// Section 7: every step the loss scale moved or a step was skipped, and the site that caused it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "reports/number_text.h"
#include "reports/section.h"

namespace lockstep {
namespace {

constexpr size_t kShownEvents = 20;  // the first ones; the rest are counted

struct Event {
  int64_t step;
  std::vector<std::string> cells;
};

std::vector<Event> events_of(const Report& report, const LaneReport& lane) {
  std::vector<Event> events;
  for (const SkipEvent& skip : lane.skips) {
    const std::string culprit =
        skip.culprit_site < 0 ? "-" : report.site(skip.culprit_site).label();
    const std::string after = std::isnan(skip.scale_after) ? "-" : scale_text(skip.scale_after);
    events.push_back(
        {skip.step,
         {fmt::format("{}", skip.step), "skipped", scale_text(skip.scale), after, culprit}});
  }
  for (const GrowthEvent& growth : lane.growths) {
    events.push_back({growth.step,
                      {fmt::format("{}", growth.step), "grew", scale_text(growth.scale),
                       scale_text(growth.scale_after), ""}});
  }
  std::stable_sort(events.begin(), events.end(),
                   [](const Event& a, const Event& b) { return a.step < b.step; });
  return events;
}

}  // namespace

Blocks loss_scale_section(const Report& report) {
  Blocks out;
  for (const LaneReport& lane : report.lanes) {
    if (!lane.has_scaler) continue;
    const std::vector<Event> events = events_of(report, lane);
    out.push_back(
        paragraph(fmt::format("{}: scale {} at the end, {} of {} skipped, grew {}.", lane.info.name,
                              scale_text(lane.final_scale), lane.skips.size(),
                              counted(static_cast<uint64_t>(report.steps), "step"),
                              counted(lane.growths.size(), "time"))));
    if (lane.repeated_attempts > 0) {
      out.push_back(paragraph(
          fmt::format("{}: overflows made {} after another scale had been set (replay).",
                      lane.info.name, counted(lane.repeated_attempts, "further attempt"))));
    }
    if (events.empty()) continue;
    TableBlock table;
    table.columns = {{"step"},
                     {"event", Align::kLeft},
                     {"scale"},
                     {"then"},
                     {"first non-finite site", Align::kLeft}};
    for (size_t i = 0; i < std::min(events.size(), kShownEvents); ++i) {
      table.rows.push_back(events[i].cells);
    }
    if (events.size() > kShownEvents) {
      table.notes.push_back(fmt::format("... and {} more", events.size() - kShownEvents));
    }
    out.push_back(std::move(table));
  }
  return out;
}

}  // namespace lockstep
