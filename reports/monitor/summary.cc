// What the run shows, a sentence each.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "reports/monitor/monitor_page.h"
#include "reports/words/range_text.h"
#include "reports/writers/number_text.h"

namespace lockstep {
namespace {

std::string alarms_sentence(const MonitorReport& report) {
  if (report.alarms.empty()) return "No alarm.";
  const LiveAlarm& first = report.alarms.front();
  const std::string place = first.site < 0 ? "" : place_name(report.site(first.site)) + ": ";
  return fmt::format("{}, the first at step {}: {}{}.", counted(report.alarms.size(), "alarm"),
                     first.step, place, first.sentence);
}

std::string headroom_sentence(const MonitorReport& report) {
  const LiveSiteReport* least = nullptr;
  for (const LiveSiteReport& place : report.places) {
    if (std::isnan(place.least_headroom)) continue;
    if (least == nullptr || place.least_headroom < least->least_headroom) least = &place;
  }
  if (least == nullptr) return "";
  return fmt::format("The least headroom is {:.1f} octaves, of {} in {}.", least->least_headroom,
                     place_name(report.site(least->site)),
                     report.formats[static_cast<size_t>(least->site)]);
}

std::string stagnation_sentence(const MonitorReport& report) {
  const auto worst = std::ranges::max_element(report.updates, {}, &LiveUpdate::last_stagnant_bf16);
  if (worst == report.updates.end() || worst->last_stagnant_bf16 == 0) return "";
  return fmt::format("In BF16 weights up to {} of a weight's updates would change nothing: {}.",
                     percent(worst->last_stagnant_bf16), tensor_name(report.site(worst->site)));
}

Blocks write_summary(const MonitorReport& report) {
  Blocks blocks;
  const bool is_alarmed = !report.alarms.empty();
  std::string alarms = alarms_sentence(report);
  const size_t toned = alarms.find_first_of(",.");
  blocks.push_back(paragraph(std::move(alarms), is_alarmed ? Tone::kBad : Tone::kGood, toned));
  const std::string steps = counted(static_cast<size_t>(report.steps()), "step");
  const bool trains = !std::isnan(report.lr.front());  // inference has no loss
  const std::string course =
      trains ? fmt::format("The loss went from {} to {} in {}, {} skipped.",
                           loss_text(report.loss.front()), loss_text(report.loss.back()), steps,
                           report.skips.size())
             : steps + " of inference.";
  blocks.push_back(paragraph(fmt::format("{} Sites were measured in {}, every {} steps.", course,
                                         counted(report.measured.size(), "step"), report.every)));
  for (std::string sentence :
       {headroom_sentence(report), kept_layers_sentence(report.ranges.front()),
        loss_scale_sentence(report.ranges.front()), stagnation_sentence(report)}) {
    if (!sentence.empty()) blocks.push_back(paragraph(std::move(sentence)));
  }
  if (!report.damage.empty()) {
    blocks.push_back(paragraph(fmt::format("The file is damaged: {}.", report.damage)));
  }
  return blocks;
}

}  // namespace

MonitorSection summary_monitor_section() {
  return {"summary", "Summary", write_summary};
}

}  // namespace lockstep
