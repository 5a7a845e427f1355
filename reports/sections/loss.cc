// The training loss of every lane: its curve; in a table, a few columns and a sparkline.
#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "reports/number_text.h"
#include "reports/section.h"

namespace lockstep {
namespace {

constexpr int kLossColumns = 7;
constexpr int kSparklineWidth = 20;

double mean(std::span<const double> values) {
  double sum = 0;
  for (const double v : values) sum += v;
  return sum / static_cast<double>(values.size());
}

TableBlock table_of(const Report& report) {
  const auto steps = static_cast<size_t>(report.steps);
  const size_t columns = std::min<size_t>(kLossColumns, steps);
  TableBlock table;
  table.columns = {{"lane", Align::kLeft}};
  for (size_t c = 0; c < columns; ++c) {
    const size_t begin = c * steps / columns, end = (c + 1) * steps / columns;
    const bool single = end == begin + 1;
    table.columns.push_back({single ? fmt::format("{}", begin) : fmt::format("..{}", end - 1)});
  }
  table.columns.push_back({"course", Align::kLeft});
  for (const LaneReport& lane : report.lanes) {
    if (lane.is_twin()) continue;
    std::vector<std::string> row = {lane.info.name};
    const std::span<const double> loss(lane.loss);
    for (size_t c = 0; c < columns; ++c) {
      const size_t begin = c * steps / columns, end = (c + 1) * steps / columns;
      row.push_back(loss_text(mean(loss.subspan(begin, end - begin))));
    }
    row.push_back(sparkline(loss, kSparklineWidth));
    table.rows.push_back(std::move(row));
  }
  table.notes = {
      "Unscaled training loss, mean over the steps up to the one above the column (0-based). "
      "The course is drawn from each lane's smallest to its largest mean; x: not finite."};
  return table;
}

Blocks write_loss(const Report& report) {
  Curves curves{.x_title = "step", .x = step_labels(report), .panels = {{.title = "loss"}}};
  for (const LaneReport& lane : report.lanes) {
    curves.panels[0].series.push_back({.name = lane.info.name, .values = lane.loss});
  }
  return {chart("Unscaled training loss of every step", std::move(curves), table_of(report))};
}

}  // namespace

Section loss_section() {
  return {"loss", "Training loss over the steps", false, write_loss};
}

}  // namespace lockstep
