// One row per lane: outcome, distance, loss scale, time.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "reports/run/section.h"
#include "reports/words/outcome_words.h"
#include "reports/writers/cells.h"
#include "reports/writers/number_text.h"

namespace lockstep {
namespace {

Cell accuracy_cell(double accuracy) {
  if (std::isnan(accuracy)) return "-";
  return {fmt::format("{:.2f}%", 100 * accuracy), accuracy};
}

Cell gap_cell(double gap) {
  if (std::isnan(gap)) return "-";
  return {fmt::format("{:+.4f}", gap), gap};
}

// The truth lane is a measure, not a candidate.
std::string verdict_text(const LaneReport& lane) {
  if (lane.is_captured()) return "(recorded)";
  const bool is_measure = !lane.is_candidate() && !lane.info.is_reference;
  if (is_measure && lane.judgement.verdict != Verdict::kBroke) return "(measure)";
  return std::string(shown_outcome(lane.judgement.verdict));
}

// "0.0412"; a mean of fewer steps than the others' says so: "0.0412 (1 step)".
Cell mean_loss_cell(const LaneReport& lane, size_t tail) {
  const int64_t steps = lane.judgement.tail_steps;
  Cell cell = loss_cell(lane.judgement.tail_loss);
  if (steps > 0 && steps < static_cast<int64_t>(tail)) {
    cell.text += fmt::format(" ({})", counted(static_cast<uint64_t>(steps), "step"));
  }
  return cell;
}

// Several scalers in the order of the loss scale section.
Cell scales_cell(const LaneReport& lane) {
  if (!lane.has_scaler) return "";
  if (lane.scalers.size() == 1) return scale_cell(lane.scalers[0].final_scale);
  std::string text;
  for (const ScalerReport& scaler : lane.scalers) {
    text += (text.empty() ? "" : ", ") + scale_text(scaler.final_scale);
  }
  return text;
}

std::vector<Cell> lane_row(const LaneReport& lane, size_t tail) {
  const LaneJudgement& j = lane.judgement;
  return {lane.info.name,
          verdict_text(lane),
          mean_loss_cell(lane, tail),
          lane.info.is_reference ? Cell("") : gap_cell(j.gap),
          accuracy_cell(lane.accuracy),
          lane.info.is_reference ? Cell("") : number_cell(lane.weight_distance),
          lane.has_scaler ? fmt::format("{}", lane.skips.size()) : "",
          scales_cell(lane),
          lane.info.died_at >= 0 ? fmt::format("{}", lane.info.died_at) : "",
          seconds_cell(lane.seconds)};
}

// "8 steps of batch 64", "8 steps of up to 2 micro-batches of batch 8" (captured steps may have
// fewer), "200 steps of batch 64 (20 measured)".
std::string steps_text(const Report& report) {
  const RunOptions& o = report.options;
  const std::string micro = o.accumulate == 1
                                ? ""
                                : fmt::format("{}{} micro-batches of ",
                                              o.capture_hash.empty() ? "" : "up to ", o.accumulate);
  return fmt::format("{} of {}batch {}{}", counted(static_cast<uint64_t>(report.steps), "step"),
                     micro, o.batch, measured_note(report));
}

std::string seeds_note(const Report& report) {
  std::string text = fmt::format(
      "verdict, loss, gap and held-out: over {} seeds. All else, here and below: seed {}",
      report.seeds.size(), report.seeds.front());
  for (const LaneReport& lane : report.lanes) {
    if (lane.findings_seed == report.seeds.front()) continue;
    text += fmt::format(", of {} seed {}", lane.info.name, lane.findings_seed);
  }
  return text + " (`lockstep report --seed S`: one seed).";
}

std::string distance_note(const Report& report) {
  std::string text = "gap: loss minus the reference's (" + report.reference().info.name +
                     "). distance: |w - w_ref| / |w_ref| over all weights after the last step" +
                     (report.unmeasured_steps == 0 || report.last_measured == report.steps - 1
                          ? ""
                          : fmt::format(" that was measured ({})", report.last_measured)) +
                     ", against the same reference.";
  if (std::ranges::any_of(report.lanes,
                          [](const LaneReport& lane) { return !lane.skips.empty(); })) {
    text +=
        " A lane that skipped steps is compared at as many updates: with as many earlier steps of "
        "the reference.";
  }
  if (report.truth >= 0) {
    text += " The fp64 row's distance is the reference's own error against the truth.";
  }
  if (report.captured >= 0) text += " A - of the captured run was not measured.";
  for (const int index : report.twins) {
    const LaneReport& twin = report.lanes[static_cast<size_t>(index)];
    text += fmt::format(
        " {} (one ulp moved, measures chaos): gap {}, distance {}, {}.", twin.info.name,
        std::isnan(twin.judgement.gap) ? "-" : fmt::format("{:+.4f}", twin.judgement.gap),
        short_number(twin.weight_distance), seconds_text(twin.seconds));
  }
  return text;
}

constexpr std::ptrdiff_t kHeldOutColumn = 4;
void drop_column(TableBlock& table, std::ptrdiff_t column) {
  table.columns.erase(table.columns.begin() + column);
  for (auto& row : table.rows) row.erase(row.begin() + column);
}

// The note on the column "held-out".
std::string held_out_note(const std::vector<Evaluation>& evaluations) {
  if (evaluations.empty()) return "held-out: not evaluated. ";
  const auto examples = static_cast<uint64_t>(evaluations.back().example_count);
  return fmt::format(
      "held-out: accuracy over the {} of the last evaluation (-: none, or all answers NaN). ",
      counted(examples, "example"));
}

Blocks write_lanes(const Report& report) {
  TableBlock table;
  constexpr bool kOptional = true;
  table.columns = {{"lane", Align::kLeft},
                   {"verdict", Align::kLeft},
                   {"loss"},
                   {"gap"},
                   {"held-out"},
                   {"distance", Align::kRight, kOptional},
                   {"skips"},
                   {"scale"},
                   {"died", Align::kRight, kOptional},
                   {"time", Align::kRight, kOptional}};
  const size_t tail = tail_of(report.reference().loss).size();
  for (const LaneReport& lane : report.lanes) {
    if (!lane.is_twin()) table.rows.push_back(lane_row(lane, tail));
  }
  const auto any = [&](auto holds) { return std::ranges::any_of(report.lanes, holds); };
  const bool evaluates = report.options.capture_hash.empty();  // a capture holds nothing out
  if (!evaluates) drop_column(table, kHeldOutColumn);
  table.notes = {
      fmt::format("{}: {}. loss: mean over the last {} {}. {}{}{}time: the lane's own work.",
                  report.options.model, steps_text(report), tail,
                  tail == 1 ? "step" : "steps, skipped ones whose loss is not finite left out",
                  evaluates ? held_out_note(report.reference().evaluations) : "",
                  any([](const LaneReport& lane) { return lane.has_scaler; })
                      ? "skips: steps skipped by the loss scaler. "
                      : "",
                  any([](const LaneReport& lane) { return lane.info.died_at >= 0; })
                      ? "died: the step at which the lane stopped. "
                      : ""),
      distance_note(report)};
  if (report.has_several_seeds()) table.notes.push_back(seeds_note(report));
  return {table};
}

}  // namespace

Section lanes_section() {
  return {.name = "lanes", .title = "Lanes", .in_summary = true, .write = write_lanes};
}

}  // namespace lockstep
