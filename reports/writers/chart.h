// Charts as plain data, without their layout; chart_json.h writes them for the page's script.
// Values that are not finite are gaps. Exponents are those of powers of two.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace lockstep {

// ---- curves over one x axis, in panels one below the other

enum class CurveScale : uint8_t { kLinear, kLogarithmic, kPowersOfTwo };

// A point of a curve with something to say.
struct CurveMark {
  size_t index = 0;
  std::string text;
};
struct CurveSeries {
  std::string name;
  std::vector<double> values;  // at most as many as x labels
  std::vector<CurveMark> marks = {};
  bool is_points = false;  // its values do not lead from one to the next: points without a line
};
// What lies between two curves, in grey behind the others: a band of noise.
struct CurveBand {
  std::string name;
  std::vector<double> low, high;
};
struct CurvePanel {
  std::string title;
  CurveScale scale = CurveScale::kLinear;
  std::vector<CurveSeries> series = {};
  std::vector<CurveBand> bands = {};
  std::string mark_name = {};  // what a mark of these series is: "skipped step"
};
struct Curves {
  std::string x_title;
  std::vector<std::string> x;
  std::vector<CurvePanel> panels;
};

// ---- heat map: rows x columns, one view at a time, chosen by selectors

struct HeatCell {
  uint32_t row = 0, column = 0;
  double value = 0;
  int32_t site = -1;         // whose histogram the cell opens; -1: none
  bool is_measured = false;  // outlined
};
struct HeatView {
  std::vector<std::string> choice;  // as many as selectors: {"pure-fp16", "weight", "overflow"}
  std::string unit;                 // of the values: "share of the values that became infinite"
  std::string lane;                 // of the histograms that the cells open
  std::vector<HeatCell> cells;      // those that are not zero
};
struct HeatMap {
  std::string x_title, y_title;
  std::vector<std::string> rows, columns;
  std::vector<std::string> selectors;  // {"lane", "role", "measure"}
  bool is_logarithmic = true;          // the colours
  double floor = 0;                    // values up to here have no colour
  // Another order of the rows that readers may choose, and the names of both; empty: none.
  std::vector<uint32_t> other_order = {};
  std::vector<std::string> order_names = {};  // {"worst first", "order of the network"}
  std::vector<HeatView> views;                // the one to show first leads
};

// ---- exponent histograms with the formats' windows, and what a loss scale would lose

struct FormatWindow {
  std::string name;
  int min_subnormal = 0, min_normal = 0, max = 0;  // exponents
};
// Counts of magnitudes, by exponent.
struct ExponentCounts {
  int first = 0;
  std::vector<uint64_t> counts;
};
struct HistogramView {
  int32_t site = -1;
  std::string lane, layer, role, label, source_line;
  std::string format;   // what the lane rounds to here
  ExponentCounts seen;  // by the lane, before rounding, as computed (scaled)
  uint64_t zeros = 0, nonfinite = 0;
  std::string scale;  // of the lane's values: "2^16", or "" for unscaled ones
};
// The reference's magnitudes at a site, unscaled, and for each loss scale 2^(first_scale + i) the
// share of the nonzero values that would become zero or exceed the largest number.
struct ShiftedGradient {
  int32_t site = -1;
  std::string format;
  ExponentCounts reference;
  std::vector<double> to_zero, overflow;
};
struct Histograms {
  std::vector<FormatWindow> windows;
  int first_scale = 0;  // of ShiftedGradient
  std::vector<HistogramView> views;
  bool finding_leads = false;  // the first view is of a finding: show it first
  std::string reference = {};  // the lane whose values are shifted
  std::vector<ShiftedGradient> gradients;
};

// ---- intervals, one bar a row

struct IntervalRow {
  std::string name;
  double low = 0, high = 0;         // low > high: empty
  std::string low_text, high_text;  // what sets the ends
};
struct IntervalMark {
  std::string name;
  double value = 0;
};
struct Intervals {
  std::string x_title;  // of exponents
  std::vector<IntervalRow> rows;
  double low = 0, high = 0;  // common to those that `common_name` says; low > high: none
  std::string common_name;   // "common to the 3 layers in fp16"
  std::vector<IntervalMark> marks;
};

// ---- points

struct ScatterPoint {
  std::string name, group;
  double x = 0, y = 0;
  std::optional<double> y_high = {};  // the upper end of a bar; Scatter::bar_help says of what
  bool is_chosen = false;
};
struct Scatter {
  std::string x_title, y_title;
  bool x_is_logarithmic = false, y_is_logarithmic = false;
  std::string bar_help = {};
  std::vector<ScatterPoint> points;
};

using Chart = std::variant<Curves, HeatMap, Histograms, Intervals, Scatter>;

}  // namespace lockstep
