// Errors along the depth of the network: what each layer's rounding adds, and what has come
// together.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "reports/run/section.h"
#include "reports/writers/cells.h"

namespace lockstep {
namespace {

using Errors = std::vector<LayerError> ErrorGrowth::*;

// Nothing: no lane has such errors.
Blocks charts_of(const Report& report, Errors errors, std::string name, std::string_view title) {
  Curves curves{.x_title = "layer", .x = {}, .panels = {{.title = "relative error"}}};
  CurvePanel& panel = curves.panels[0];
  panel.scale = CurveScale::kLogarithmic;
  TableBlock table;
  table.name = std::move(name);
  table.columns = {{"layer", Align::kLeft}};
  for (const LaneReport& lane : report.lanes) {
    if (!lane.views.growth || lane.is_twin()) continue;
    const std::vector<LayerError>& layers = *lane.views.growth.*errors;
    if (layers.size() > curves.x.size()) {
      curves.x.clear();
      table.rows.clear();
      for (const LayerError& one : layers) {
        curves.x.push_back(one.layer);
        table.rows.push_back({Cell(one.layer)});
      }
    }
  }
  for (const LaneReport& lane : report.lanes) {
    if (!lane.views.growth || lane.is_twin()) continue;
    const std::vector<LayerError>& layers = *lane.views.growth.*errors;
    CurveSeries total{.name = lane.info.name + ", accumulated", .values = {}};
    CurveSeries local{
        .name = lane.info.name + ", this layer alone", .values = {}, .is_points = true};
    table.columns.push_back({total.name});
    table.columns.push_back({local.name});
    for (size_t i = 0; i < curves.x.size(); ++i) {
      const auto at = std::ranges::find(layers, curves.x[i], &LayerError::layer);
      const bool has = at != layers.end();
      total.values.push_back(has && at->total > 0 ? at->total : std::nan(""));
      local.values.push_back(has && at->local > 0 ? at->local : std::nan(""));
      table.rows[i].push_back(error_cell(total.values.back()));
      table.rows[i].push_back(error_cell(local.values.back()));
    }
    panel.series.push_back(std::move(total));
    panel.series.push_back(std::move(local));
  }
  if (curves.x.size() < 2 || panel.series.empty()) return {};
  const bool any = std::ranges::any_of(panel.series, [](const CurveSeries& series) {
    return std::ranges::any_of(series.values, [](double value) { return std::isfinite(value); });
  });
  if (!any) return {paragraph(fmt::format("{}: not finite in any lane.", title))};
  return {chart(std::string(title), std::move(curves), std::move(table))};
}

Blocks write_error_growth(const Report& report) {
  Blocks out =
      charts_of(report, &ErrorGrowth::forward, "activations", "Activations, in execution order");
  for (Block& block : charts_of(report, &ErrorGrowth::backward, "gradients",
                                "Gradients of activations, in execution order")) {
    out.push_back(std::move(block));
  }
  if (out.empty()) return {};
  out.insert(out.begin(),
             paragraph("Relative errors (of the norm) of each layer's last output in one of the "
                       "first steps, in which the lane still has the reference's weights. "
                       "accumulated: against the reference; this layer alone: its own rounding."));
  return out;
}

}  // namespace

Section error_growth_section() {
  return {.name = "error-growth",
          .title = "How errors grow through the network",
          .in_summary = false,
          .write = write_error_growth,
          .only_html = true};
}

}  // namespace lockstep
