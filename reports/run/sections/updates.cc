// The share of the weight updates that was rounded away (stagnation), by layer and lane.
#include <fmt/format.h>

#include <algorithm>

#include "reports/run/section.h"
#include "reports/writers/cells.h"
#include "reports/writers/number_text.h"

namespace lockstep {
namespace {

// Below this share a lane is not listed: FP32 itself loses the smallest updates.
constexpr double kShownStagnationRate = 0.01;

Blocks write_updates(const Report& report) {
  TableBlock table;
  table.columns = {
      {"lane", Align::kLeft}, {"all layers"}, {"worst share"}, {"worst layer", Align::kLeft}};
  size_t quiet = 0;
  for (const LaneReport& lane : report.lanes) {
    if (lane.is_captured() || lane.is_twin()) continue;  // not measured, or noise
    Stagnation all;
    const Stagnation* worst = nullptr;
    for (const Stagnation& layer : lane.updates) {
      all.stagnant += layer.stagnant;
      all.count += layer.count;
      if (worst == nullptr || layer.rate() > worst->rate()) worst = &layer;
    }
    if (worst == nullptr || worst->rate() < kShownStagnationRate) {
      ++quiet;
      continue;
    }
    table.rows.push_back(
        {lane.info.name, percent_cell(all.rate()), percent_cell(worst->rate()), worst->layer});
  }
  if (table.rows.empty()) {
    return {paragraph(
        fmt::format("Less than {} in every layer of every lane.", percent(kShownStagnationRate)))};
  }
  table.notes = {
      fmt::format("Share of the updates with round(w + dw) == w although dw is not zero: the "
                  "weight does not change. "
                  "Below {} in every layer: {}.",
                  percent(kShownStagnationRate), counted(quiet, "lane"))};
  return {table};
}

}  // namespace

Section updates_section() {
  return {
      .name = "updates", .title = "Weight updates that came to nothing", .write = write_updates};
}

}  // namespace lockstep
