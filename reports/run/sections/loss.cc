// The training loss of every lane over bands of noise, and the loss scale beneath on the same axis;
// in a table, a few columns and a sparkline.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "reports/run/section.h"
#include "reports/writers/cells.h"
#include "reports/writers/number_text.h"

namespace lockstep {
namespace {

constexpr int kLossColumns = 7;
constexpr int kSparklineWidth = 20;

double mean(std::span<const double> values) {
  double sum = 0;
  for (const double v : values) sum += v;
  return sum / static_cast<double>(values.size());
}

TableBlock loss_table(const Report& report) {
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
    std::vector<Cell> row = {Cell(lane.info.name)};
    const std::span<const double> loss(lane.loss);
    for (size_t c = 0; c < columns; ++c) {
      const size_t begin = c * steps / columns, end = (c + 1) * steps / columns;
      row.push_back(loss_cell(mean(loss.subspan(begin, end - begin))));
    }
    row.push_back(sparkline(loss, kSparklineWidth));
    table.rows.push_back(std::move(row));
  }
  table.notes = {
      "Unscaled training loss, mean over the steps up to the one above the column (0-based). "
      "The course is drawn from each lane's smallest to its largest mean; x: not finite."};
  if (report.twins.empty()) {
    table.notes.push_back("No twin ran, so there is no band of noise around " +
                          report.reference().info.name + " (`replay --twins 1`).");
  }
  return table;
}

// From this ratio of the largest to the smallest loss on, the axis is logarithmic.
constexpr double kLogarithmicRatio = 1000;

CurveScale curve_scale(const CurvePanel& panel) {
  double lowest = std::numeric_limits<double>::infinity(), highest = -lowest;
  for (const CurveSeries& series : panel.series) {
    for (const double value : series.values) {
      if (!std::isfinite(value)) continue;
      lowest = std::min(lowest, value);
      highest = std::max(highest, value);
    }
  }
  const bool is_wide = lowest > 0 && highest / lowest > kLogarithmicRatio;
  return is_wide ? CurveScale::kLogarithmic : CurveScale::kLinear;
}

// From the lowest to the highest finite value of several courses, step by step.
CurveBand band_of(std::string name, const std::vector<std::span<const double>>& courses) {
  CurveBand band{std::move(name), {}, {}};
  for (size_t step = 0; step < courses.front().size(); ++step) {
    double low = std::numeric_limits<double>::infinity(), high = -low;
    for (const auto& course : courses) {
      if (step >= course.size() || !std::isfinite(course[step])) continue;
      low = std::min(low, course[step]);
      high = std::max(high, course[step]);
    }
    const bool any = low <= high;
    band.low.push_back(any ? low : std::numeric_limits<double>::quiet_NaN());
    band.high.push_back(any ? high : std::numeric_limits<double>::quiet_NaN());
  }
  return band;
}

// Bands: the reference with the effect of one ulp at the start; the reference on all seeds.
std::vector<CurveBand> bands_of(const Report& report) {
  const std::string& reference = report.reference().info.name;
  std::vector<CurveBand> bands;
  if (report.reference_losses.size() > 1) {
    const auto& losses = report.reference_losses;
    bands.push_back(band_of(fmt::format("{}, {} seeds", reference, losses.size()),
                            std::vector<std::span<const double>>(losses.begin(), losses.end())));
  }
  if (!report.twins.empty()) {
    std::vector<std::span<const double>> courses = {report.reference().loss};
    for (const int twin : report.twins) {
      courses.emplace_back(report.lanes[static_cast<size_t>(twin)].loss);
    }
    const std::string twins =
        report.twins.size() == 1 ? "twin" : fmt::format("{} twins", report.twins.size());
    bands.push_back(band_of(fmt::format("{} and its {}", reference, twins), courses));
  }
  return bands;
}

CurveSeries losses_of(const Report& report, const LaneReport& lane) {
  CurveSeries series{.name = lane.info.name, .values = lane.loss};
  if (lane.nonfinite_loss_at >= 0) {
    const std::string stopped =
        lane.info.died_at >= 0 && lane.info.died_at < report.steps
            ? fmt::format("; the lane stopped at step {}", lane.info.died_at)
            : "";
    series.marks.push_back({static_cast<size_t>(lane.nonfinite_loss_at),
                            fmt::format("the loss is not finite{}", stopped)});
  }
  return series;
}

void add_scales(const Report& report, const LaneReport& lane, CurvePanel& panel) {
  if (!lane.has_scaler) return;
  for (const ScalerReport& scaler : lane.scalers) {
    CurveSeries& series = panel.series.emplace_back();
    series.name = lane.info.name + (scaler.loss.empty() ? "" : ", loss " + scaler.loss);
    series.values = scaler.scales;
    for (const SkipEvent& skip : scaler.overflows) {
      series.marks.push_back({static_cast<size_t>(skip.step),
                              skip.culprit_site < 0 ? "skipped"
                                                    : "skipped, first not finite: " +
                                                          report.site(skip.culprit_site).label()});
    }
  }
}

Blocks write_loss(const Report& report) {
  if (!report.options.part.empty()) return {};  // an inner product with another gradient each time
  CurvePanel losses{.title = "loss", .bands = bands_of(report), .mark_name = "no longer finite"};
  CurvePanel scales{
      .title = "loss scale", .scale = CurveScale::kPowersOfTwo, .mark_name = "skipped step"};
  bool has_end = false, has_skip = false;
  for (const LaneReport& lane : report.lanes) {
    if (lane.is_twin()) continue;
    losses.series.push_back(losses_of(report, lane));
    add_scales(report, lane, scales);
    has_end |= !losses.series.back().marks.empty();
    has_skip |= lane.has_scaler && !lane.skips.empty();
  }
  losses.scale = curve_scale(losses);
  if (!has_end) losses.mark_name = "";
  if (!has_skip) scales.mark_name = "";
  Curves curves{.x_title = "step", .x = step_labels(report), .panels = {std::move(losses)}};
  const bool has_scales = !scales.series.empty();
  if (has_scales) curves.panels.push_back(std::move(scales));
  return {chart(has_scales ? "Unscaled training loss of every step, and the loss scale"
                           : "Unscaled training loss of every step",
                std::move(curves), loss_table(report))};
}

}  // namespace

Section loss_section() {
  return {.name = "loss", .title = "Training loss over the steps", .write = write_loss};
}

}  // namespace lockstep
