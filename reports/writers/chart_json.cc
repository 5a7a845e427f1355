// See chart_json.h. Cells and counts are arrays, not objects: a large report holds 10^5 of them.
#include "reports/writers/chart_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <span>

namespace lockstep {
namespace {

using nlohmann::json;

json number(double value) {
  if (!std::isfinite(value)) return nullptr;
  if (value == std::floor(value) && std::fabs(value) < 1e15) return static_cast<int64_t>(value);
  return std::strtod(fmt::format("{:.5g}", value).c_str(), nullptr);
}

json numbers(std::span<const double> values) {
  json out = json::array();
  for (const double value : values) out.push_back(number(value));
  return out;
}

// The parts of the x axis that are one point each.
struct Parts {
  size_t size = 0, count = 0;
  size_t begin(size_t part) const { return part * size / count; }
  size_t end(size_t part) const { return (part + 1) * size / count; }
  size_t part_of(size_t index) const {
    size_t part = std::min(count - 1, index * count / size);
    while (index >= end(part)) ++part;
    return part;
  }
};

// A series that ends early has only the parts with all of their values.
template <typename Join>
json joined(std::span<const double> values, const Parts& parts, Join join) {
  std::vector<double> out;
  for (size_t p = 0; p < parts.count && parts.end(p) <= values.size(); ++p) {
    out.push_back(join(values.subspan(parts.begin(p), parts.end(p) - parts.begin(p))));
  }
  return numbers(out);
}

double mean(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}
double lowest(std::span<const double> values) {
  return *std::ranges::min_element(values);
}
double highest(std::span<const double> values) {
  return *std::ranges::max_element(values);
}
double last(std::span<const double> values) {
  return values.back();
}

std::string scale_name(CurveScale scale) {
  switch (scale) {
    case CurveScale::kLogarithmic:
      return "logarithmic";
    case CurveScale::kPowersOfTwo:
      return "powers of two";
    case CurveScale::kLinear:
      break;
  }
  return "linear";
}

json json_of(const Curves& curves) {
  json out = {{"kind", "curves"}, {"xTitle", curves.x_title}, {"panels", json::array()}};
  const Parts parts{curves.x.size(), std::min(curves.x.size(), kMostPoints)};
  json x = json::array();
  for (size_t p = 0; p < parts.count; ++p) {
    const size_t begin = parts.begin(p), end = parts.end(p) - 1;
    x.push_back(begin == end ? curves.x[begin] : curves.x[begin] + ".." + curves.x[end]);
  }
  out["x"] = std::move(x);
  if (parts.count < parts.size) out["joined"] = parts.size;
  for (const CurvePanel& panel : curves.panels) {
    json series = json::array(), bands = json::array();
    for (const CurveSeries& one : panel.series) {
      json marks = json::array();
      for (const CurveMark& mark : one.marks) {
        marks.push_back({parts.part_of(mark.index), mark.index, mark.text});
      }
      const bool is_stair = panel.scale == CurveScale::kPowersOfTwo;
      series.push_back(
          {{"name", one.name},
           {"values", is_stair ? joined(one.values, parts, last) : joined(one.values, parts, mean)},
           {"marks", std::move(marks)},
           {"isPoints", one.is_points}});
    }
    for (const CurveBand& band : panel.bands) {
      bands.push_back({{"name", band.name},
                       {"low", joined(band.low, parts, lowest)},
                       {"high", joined(band.high, parts, highest)}});
    }
    out["panels"].push_back({{"title", panel.title},
                             {"scale", scale_name(panel.scale)},
                             {"series", std::move(series)},
                             {"markName", panel.mark_name},
                             {"bands", std::move(bands)}});
  }
  return out;
}

// A cell: [row, column, value, site, 1 if measured].
json json_of(const HeatMap& map) {
  json views = json::array();
  for (const HeatView& view : map.views) {
    json cells = json::array();
    for (const HeatCell& cell : view.cells) {
      cells.push_back({cell.row, cell.column, number(cell.value), cell.site,
                       static_cast<int>(cell.is_measured)});
    }
    views.push_back({{"choice", view.choice},
                     {"unit", view.unit},
                     {"lane", view.lane},
                     {"cells", std::move(cells)}});
  }
  return {{"kind", "heat map"},
          {"xTitle", map.x_title},
          {"yTitle", map.y_title},
          {"rows", map.rows},
          {"columns", map.columns},
          {"selectors", map.selectors},
          {"logarithmic", map.is_logarithmic},
          {"floor", number(map.floor)},
          {"otherOrder", map.other_order},
          {"orderNames", map.order_names},
          {"views", std::move(views)}};
}

json json_of(const ExponentCounts& counts) {
  return {{"first", counts.first}, {"counts", counts.counts}};
}

json json_of(const FormatWindow& window) {
  return {{"name", window.name},
          {"minSubnormal", window.min_subnormal},
          {"minNormal", window.min_normal},
          {"max", window.max}};
}

json json_of(const Histograms& histograms) {
  json windows = json::array(), views = json::array(), gradients = json::array();
  for (const FormatWindow& window : histograms.windows) windows.push_back(json_of(window));
  for (const HistogramView& view : histograms.views) {
    views.push_back({{"site", view.site},
                     {"lane", view.lane},
                     {"layer", view.layer},
                     {"role", view.role},
                     {"label", view.label},
                     {"source", view.source_line},
                     {"format", view.format},
                     {"seen", json_of(view.seen)},
                     {"zeros", view.zeros},
                     {"nonfinite", view.nonfinite},
                     {"scale", view.scale}});
  }
  for (const ShiftedGradient& gradient : histograms.gradients) {
    gradients.push_back({{"site", gradient.site},
                         {"format", gradient.format},
                         {"reference", json_of(gradient.reference)},
                         {"toZero", numbers(gradient.to_zero)},
                         {"overflow", numbers(gradient.overflow)}});
  }
  return {{"kind", "histograms"},
          {"windows", std::move(windows)},
          {"firstScale", histograms.first_scale},
          {"findingLeads", histograms.finding_leads},
          {"reference", histograms.reference},
          {"views", std::move(views)},
          {"gradients", std::move(gradients)}};
}

json json_of(const Intervals& intervals) {
  json rows = json::array(), marks = json::array();
  for (const IntervalRow& row : intervals.rows) {
    rows.push_back({{"name", row.name},
                    {"low", number(row.low)},
                    {"high", number(row.high)},
                    {"lowText", row.low_text},
                    {"highText", row.high_text}});
  }
  for (const IntervalMark& mark : intervals.marks) {
    marks.push_back({{"name", mark.name}, {"value", number(mark.value)}});
  }
  return {{"kind", "intervals"},
          {"xTitle", intervals.x_title},
          {"rows", std::move(rows)},
          {"low", number(intervals.low)},
          {"high", number(intervals.high)},
          {"commonName", intervals.common_name},
          {"marks", std::move(marks)}};
}

json json_of(const Scatter& scatter) {
  json points = json::array();
  for (const ScatterPoint& point : scatter.points) {
    json one = {{"name", point.name},
                {"group", point.group},
                {"x", number(point.x)},
                {"y", number(point.y)},
                {"chosen", point.is_chosen}};
    if (point.y_high) one["yHigh"] = number(*point.y_high);
    points.push_back(std::move(one));
  }
  return {{"kind", "scatter"},
          {"xTitle", scatter.x_title},
          {"yTitle", scatter.y_title},
          {"xLogarithmic", scatter.x_is_logarithmic},
          {"yLogarithmic", scatter.y_is_logarithmic},
          {"barHelp", scatter.bar_help},
          {"points", std::move(points)}};
}

}  // namespace

std::string chart_json(const Chart& chart) {
  const json data = std::visit([](const auto& one) { return json_of(one); }, chart);
  constexpr int kNoIndent = -1;
  const std::string text = data.dump(kNoIndent, ' ', false, json::error_handler_t::replace);
  std::string safe;
  for (const char c : text) {
    if (c == '<') {
      safe += "\\u003c";  // only strings hold it
    } else {
      safe += c;
    }
  }
  return safe;
}

}  // namespace lockstep
