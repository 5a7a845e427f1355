// The losses of both runs on one chart.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "reports/pair/pair_page.h"
#include "reports/words/outcome_words.h"
#include "reports/writers/cells.h"
#include "reports/writers/number_text.h"

namespace lockstep {
namespace {

void add_lane(const LaneReport& lane, const std::string& run, CurvePanel& panel,
              TableBlock& table) {
  const LaneJudgement& j = lane.judgement;
  panel.series.push_back(
      {.name = fmt::format("{} in {}", lane.info.name, run), .values = lane.loss});
  table.rows.push_back({lane.info.name, run, std::string(shown_outcome(j.verdict)),
                        loss_cell(j.tail_loss),
                        lane.info.is_reference ? Cell("")
                        : std::isnan(j.gap)    ? Cell("-")
                                               : Cell(fmt::format("{:+.4f}", j.gap), j.gap),
                        lane.has_scaler ? fmt::format("{}", lane.skips.size()) : ""});
}

Blocks write_losses(const ReportPair& pair) {
  CurvePanel panel{.title = "loss"};
  TableBlock table;
  table.columns = {{"lane", Align::kLeft},
                   {"run", Align::kLeft},
                   {"verdict", Align::kLeft},
                   {"loss"},
                   {"gap"},
                   {"skips"}};
  for (const LaneComparison& lanes : pair.changes.lanes) {
    const bool is_noise = lanes.lanes.before >= 0 ? pair.lane_before(lanes).is_twin()
                                                  : pair.lane_after(lanes).is_twin();
    if (is_noise) continue;
    if (lanes.lanes.before >= 0) add_lane(pair.lane_before(lanes), pair.before_name, panel, table);
    if (lanes.lanes.after >= 0) add_lane(pair.lane_after(lanes), pair.after_name, panel, table);
  }
  table.notes = {
      "loss: mean over the last steps. gap: loss minus that of the same run's reference."};
  const bool longer = pair.after.steps > pair.before.steps;
  Curves curves{.x_title = "step",
                .x = step_labels(longer ? pair.after : pair.before),
                .panels = {std::move(panel)}};
  return {chart("Unscaled training loss of both runs", std::move(curves), std::move(table))};
}

}  // namespace

PairSection losses_pair_section() {
  return {.name = "losses", .title = "Training loss of both", .write = write_losses};
}

}  // namespace lockstep
