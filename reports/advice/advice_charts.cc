// See advice_charts.h.
#include "reports/advice/advice_charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "reports/advice/advice_tables.h"

namespace lockstep {
namespace {

// Rows of a heat map in the order in which they come.
uint32_t layer_row(HeatMap& map, const std::string& layer) {
  const std::string name = layer.empty() ? "-" : layer;
  const auto at = std::ranges::find(map.rows, name);
  if (at != map.rows.end()) return static_cast<uint32_t>(at - map.rows.begin());
  map.rows.push_back(name);
  return static_cast<uint32_t>(map.rows.size() - 1);
}
uint32_t column_of(HeatMap& map, const std::string& name) {
  const auto at = std::ranges::find(map.columns, name);
  if (at != map.columns.end()) return static_cast<uint32_t>(at - map.columns.begin());
  map.columns.push_back(name);
  return static_cast<uint32_t>(map.columns.size() - 1);
}

// The rows with the largest value of the first view first; rows without any value go out.
void put_worst_first(HeatMap& map) {
  if (map.views.empty()) return;
  std::vector<double> worst(map.rows.size(), -1);
  for (size_t v = 0; v < map.views.size(); ++v) {
    for (const HeatCell& cell : map.views[v].cells) {
      worst[cell.row] = std::max(worst[cell.row], v == 0 ? cell.value : 0);
    }
  }
  std::vector<uint32_t> order(map.rows.size()), place(map.rows.size());
  std::iota(order.begin(), order.end(), 0);
  std::erase_if(order, [&](uint32_t row) { return worst[row] < 0; });
  std::ranges::stable_sort(order, std::greater{}, [&](uint32_t row) { return worst[row]; });
  std::vector<std::string> rows;
  for (uint32_t i = 0; i < order.size(); ++i) {
    place[order[i]] = i;
    rows.push_back(map.rows[order[i]]);
  }
  map.rows = std::move(rows);
  for (HeatView& view : map.views) {
    for (HeatCell& cell : view.cells) cell.row = place[cell.row];
  }
}

void add_cell(HeatView& view, uint32_t row, uint32_t column, double value, bool is_measured) {
  if (!(value > 0) || !std::isfinite(value)) return;
  view.cells.push_back({.row = row, .column = column, .value = value, .is_measured = is_measured});
}

struct RoleMeasure {
  std::string_view name, unit;
  double RoleSensitivity::*value;
};
constexpr RoleMeasure kRoleMeasures[] = {
    {"lost digits", "what lost digits do to the loss, to first order", &RoleSensitivity::effect},
    {"lost range", "what lost range does to the loss, to first order",
     &RoleSensitivity::range_effect},
    {"dW error", "relative error of the factors of the weight's gradient",
     &RoleSensitivity::gradient_error},
    {"dW error over noise", "the same, over the gradient's scatter from batch to batch",
     &RoleSensitivity::error_to_noise},
    {"updates lost", "share of the updates' energy that the weights do not take",
     &RoleSensitivity::updates_lost},
};

}  // namespace

Block tried_chart(const Advice& advice) {
  Scatter out;
  out.x_title = fmt::format("estimated time on {}, of fp32's step", advice.gpu->name);
  out.y_title = "loss minus fp32's";
  out.bar_help =
      "A bar goes from a candidate's gap up to the gap plus its noise, of batches or of one ulp, "
      "whichever is larger. It has no lower half, because only a larger loss speaks against a "
      "candidate.";
  out.points.push_back({.name = "fp32", .group = "fp32", .x = 1, .y = 0});
  for (const Trial& trial : advice.tried) {
    if (!std::isfinite(trial.judgement.gap)) continue;
    const LaneJudgement& judged = trial.judgement;
    out.points.push_back(
        {.name = trial.candidate.lane,
         .group = verdict_text(trial),
         .x = trial.cost.seconds / advice.fp32_cost.seconds,
         .y = judged.gap,
         .y_high = judged.gap + std::max(judged.batch_noise, judged.chaos),
         .is_chosen = advice.chosen && advice.chosen->candidate.lane == trial.candidate.lane});
  }
  return chart("Candidates: what they cost, how they trained", std::move(out), tried_table(advice));
}

Block frontier_chart(const Advice& advice) {
  Scatter out;
  out.x_title = "cost, of the frontier's largest";
  out.y_title = "score, in units of batch noise squared";
  out.y_is_logarithmic = true;
  for (const FrontierPoint& point : advice.frontier) {
    if (!(point.score > 0)) continue;  // no place on a logarithmic axis
    out.points.push_back({.name = fmt::format("{} layers in {}", point.layers, point.format),
                          .group = point.lane.empty() ? "not run"
                                   : point.passes     ? "passed"
                                                      : "failed",
                          .x = point.cost,
                          .y = point.score});
  }
  return chart("The frontier that the search went along", std::move(out), frontier_table(advice));
}

Block layer_chart(const SensitivityTable& table) {
  HeatMap map;
  map.x_title = "format";
  map.y_title = "layer";
  map.selectors = {"measure"};
  HeatView score{.choice = {"score"},
                 .unit = "in units of batch noise squared; outlined: measured",
                 .lane = "",
                 .cells = {}};
  HeatView loss{.choice = {"alone, loss error"},
                .unit = "error of the loss, this layer alone in the format",
                .lane = "",
                .cells = {}};
  HeatView gradient{.choice = {"alone, dW error"},
                    .unit = "relative error of all weight gradients, this layer alone",
                    .lane = "",
                    .cells = {}};
  HeatView gap{.choice = {"alone, gap"},
               .unit = "gap of the loss at the end, this layer alone, its own weights",
               .lane = "",
               .cells = {}};
  for (const LayerSensitivity& one : table.layers) {
    const uint32_t row = layer_row(map, one.layer), column = column_of(map, one.format);
    add_cell(score, row, column, one.score, one.measured.has_value());
    if (!one.measured) continue;
    add_cell(loss, row, column, one.measured->loss_error, true);
    add_cell(gradient, row, column, one.measured->gradient_error, true);
    add_cell(gap, row, column, std::fabs(one.measured->accumulated), true);
  }
  for (HeatView* view : {&score, &loss, &gradient, &gap}) {
    if (!view->cells.empty()) map.views.push_back(std::move(*view));
  }
  put_worst_first(map);
  return chart("Sensitivity of the layers", std::move(map), layer_table(table));
}

Block role_chart(const SensitivityTable& table) {
  HeatMap map;
  map.x_title = "role, format";
  map.y_title = "layer";
  map.selectors = {"measure"};
  for (const RoleMeasure& measure : kRoleMeasures) {
    HeatView view{.choice = {std::string(measure.name)},
                  .unit = std::string(measure.unit),
                  .lane = "",
                  .cells = {}};
    for (const RoleSensitivity& one : table.roles) {
      const std::string column = fmt::format("{}, {}", to_string(one.role), one.format);
      if (!(one.*measure.value > 0)) continue;
      add_cell(view, layer_row(map, one.layer), column_of(map, column), one.*measure.value, false);
    }
    if (!view.cells.empty()) map.views.push_back(std::move(view));
  }
  put_worst_first(map);
  return chart("Sensitivity by role", std::move(map), role_table(table));
}

}  // namespace lockstep
