// Every step in which the loss scale changed or the step was skipped, and the site that caused it;
// each scaler separately. The curves are under those of the loss (sections/loss.cc).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "reports/run/section.h"
#include "reports/writers/cells.h"
#include "reports/writers/number_text.h"

namespace lockstep {
namespace {

constexpr size_t kShownEvents = 20;  // the first ones; the rest are counted

struct Event {
  int64_t step;
  std::vector<Cell> cells;
};

std::vector<Event> events_of(const Report& report, const LaneReport& lane,
                             const ScalerReport& scaler) {
  std::vector<Event> events;
  const std::string none = lane.is_captured() ? "not measured" : "-";
  for (const SkipEvent& skip : scaler.overflows) {
    const std::string culprit =
        skip.culprit_site < 0 ? none : report.site(skip.culprit_site).label();
    events.push_back({skip.step,
                      {fmt::format("{}", skip.step), "skipped", scale_cell(skip.scale),
                       scale_cell(skip.scale_after), culprit}});
  }
  for (const GrowthEvent& growth : scaler.growths) {
    events.push_back({growth.step,
                      {fmt::format("{}", growth.step), "grew", scale_cell(growth.scale),
                       scale_cell(growth.scale_after), ""}});
  }
  std::stable_sort(events.begin(), events.end(),
                   [](const Event& a, const Event& b) { return a.step < b.step; });
  return events;
}

// "apex-o1, loss class: scale 2^16 at the end, caused the skip of 2 of 200 steps, grew 1 time."
std::string summary_of(const Report& report, const LaneReport& lane, const ScalerReport& scaler) {
  const std::string steps = counted(static_cast<uint64_t>(report.steps), "step");
  const std::string skips =
      scaler.loss.empty()
          ? fmt::format("{} of {} skipped", lane.skips.size(), steps)
          : fmt::format("caused the skip of {} of {}", scaler.overflows.size(), steps);
  return fmt::format("{}{}: scale {} at the end, {}, grew {}.", lane.info.name,
                     scaler.loss.empty() ? "" : ", loss " + scaler.loss,
                     scale_text(scaler.final_scale), skips, counted(scaler.growths.size(), "time"));
}

void add_events(const Report& report, const LaneReport& lane, const ScalerReport& scaler,
                Blocks& out) {
  const std::vector<Event> events = events_of(report, lane, scaler);
  if (events.empty()) return;
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
  table.name = lane.info.name + (scaler.loss.empty() ? "" : "-" + scaler.loss);
  out.push_back(lockstep::table(std::move(table)));
}

Blocks write_loss_scale(const Report& report) {
  Blocks out;
  for (const LaneReport& lane : report.lanes) {
    if (!lane.has_scaler) continue;
    if (lane.scalers.size() > 1) {
      out.push_back(paragraph(
          fmt::format("{}: {} scalers, one per loss; {} of {} skipped because of at least one.",
                      lane.info.name, lane.scalers.size(), lane.skips.size(),
                      counted(static_cast<uint64_t>(report.steps), "step"))));
    }
    for (const ScalerReport& scaler : lane.scalers) {
      out.push_back(paragraph(summary_of(report, lane, scaler)));
      const bool is_last = &scaler == &lane.scalers.back();
      if (is_last && lane.repeated_attempts > 0) {
        out.push_back(paragraph(fmt::format("{}: overflows caused {} with another scale (replay).",
                                            lane.info.name,
                                            counted(lane.repeated_attempts, "further attempt"))));
      }
      add_events(report, lane, scaler, out);
    }
  }
  return out;
}

}  // namespace

Section loss_scale_section() {
  return {.name = "loss-scale", .title = "Loss scale", .write = write_loss_scale};
}

}  // namespace lockstep
