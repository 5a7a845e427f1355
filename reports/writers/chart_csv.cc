// Rows for each kind of chart.
#include "reports/writers/chart_csv.h"

#include <fmt/format.h>

namespace lockstep {
namespace {

// The shortest decimals that read as the same double.
std::string number_text(double value) {
  return fmt::format("{}", value);
}

std::string exponent_of(int first, size_t index) {
  return fmt::format("{}", first + static_cast<int>(index));
}

struct ChartRows {
  // A column per curve, named after its panel, too; a band is two.
  CsvRows operator()(const Curves& c) {
    CsvRows rows(c.x.size() + 1);
    rows[0] = {c.x_title};
    for (size_t i = 0; i < c.x.size(); ++i) rows[i + 1] = {c.x[i]};
    const auto add = [&](const std::string& name, const std::vector<double>& values) {
      rows[0].push_back(name);
      for (size_t i = 0; i < c.x.size(); ++i) {
        rows[i + 1].push_back(i < values.size() ? number_text(values[i]) : "");
      }
    };
    for (const CurvePanel& panel : c.panels) {
      const std::string prefix = panel.title.empty() ? "" : panel.title + ": ";
      for (const CurveSeries& series : panel.series) add(prefix + series.name, series.values);
      for (const CurveBand& band : panel.bands) {
        add(prefix + band.name + ", low", band.low);
        add(prefix + band.name + ", high", band.high);
      }
    }
    return rows;
  }

  // A row per cell that is not zero.
  CsvRows operator()(const HeatMap& h) {
    CsvRows rows = {h.selectors};
    for (const std::string& title : {h.y_title, h.x_title, std::string("value")}) {
      rows[0].push_back(title);
    }
    for (const HeatView& view : h.views) {
      for (const HeatCell& cell : view.cells) {
        std::vector<std::string> row = view.choice;
        row.insert(row.end(),
                   {h.rows.at(cell.row), h.columns.at(cell.column), number_text(cell.value)});
        rows.push_back(std::move(row));
      }
    }
    return rows;
  }

  // A row per exponent of a site; zeros and values that are not finite have rows of their own.
  CsvRows operator()(const Histograms& h) {
    CsvRows rows = {
        {"lane", "layer", "role", "site", "source_line", "format", "scale", "exponent", "count"}};
    for (const HistogramView& view : h.views) {
      const auto add = [&](const std::string& exponent, uint64_t count) {
        rows.push_back({view.lane, view.layer, view.role, view.label, view.source_line, view.format,
                        view.scale, exponent, fmt::format("{}", count)});
      };
      if (view.zeros > 0) add("zero", view.zeros);
      for (size_t i = 0; i < view.seen.counts.size(); ++i) {
        if (view.seen.counts[i] > 0) add(exponent_of(view.seen.first, i), view.seen.counts[i]);
      }
      if (view.nonfinite > 0) add("not finite", view.nonfinite);
    }
    return rows;
  }

  CsvRows operator()(const Intervals& v) {
    CsvRows rows = {{"name", "low", "high", "low_set_by", "high_set_by"}};
    for (const IntervalRow& row : v.rows) {
      rows.push_back(
          {row.name, number_text(row.low), number_text(row.high), row.low_text, row.high_text});
    }
    rows.push_back({"common to all", number_text(v.low), number_text(v.high), "", ""});
    return rows;
  }

  CsvRows operator()(const Scatter& s) {
    CsvRows rows = {{"name", "group", s.x_title, s.y_title, "y_high", "chosen"}};
    for (const ScatterPoint& point : s.points) {
      rows.push_back({point.name, point.group, number_text(point.x), number_text(point.y),
                      point.y_high ? number_text(*point.y_high) : "", point.is_chosen ? "1" : "0"});
    }
    return rows;
  }
};

struct KindName {
  std::string_view operator()(const Curves&) const { return "curves"; }
  std::string_view operator()(const HeatMap&) const { return "cells"; }
  std::string_view operator()(const Histograms&) const { return "histograms"; }
  std::string_view operator()(const Intervals&) const { return "intervals"; }
  std::string_view operator()(const Scatter&) const { return "points"; }
};

}  // namespace

CsvRows chart_csv(const Chart& chart) {
  return std::visit(ChartRows(), chart);
}

std::string_view chart_kind(const Chart& chart) {
  return std::visit(KindName(), chart);
}

}  // namespace lockstep
