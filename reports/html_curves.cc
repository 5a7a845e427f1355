// Axes, lines, marks and the texts that the page's script shows under the pointer.
#include "reports/html_curves.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "reports/html_text.h"
#include "reports/number_text.h"

namespace lockstep {
namespace {

constexpr double kUnits = 1000;  // the SVG's own width and height
constexpr int kTicks = 5;        // about so many on an axis
constexpr size_t kStyles = 6;    // page.css has as many kinds of lines
// From this ratio on, an axis of positive values is logarithmic.
constexpr double kLogarithmicRatio = 1000;

double mean(const std::vector<double>& values, size_t begin, size_t end) {
  double sum = 0;
  for (size_t i = begin; i < end; ++i) sum += values[i];
  return sum / static_cast<double>(end - begin);
}

// The parts of the x axis that are one point each.
struct Parts {
  size_t size = 0, count = 0;
  size_t begin(size_t part) const { return part * size / count; }
  size_t end(size_t part) const { return (part + 1) * size / count; }
  size_t part_of(size_t index) const { return std::min(count - 1, index * count / size); }
  double place(size_t part) const {  // 0..1
    return count < 2 ? 0.5 : static_cast<double>(part) / static_cast<double>(count - 1);
  }
};

struct Axis {
  enum class Kind { kLinear, kLogarithmic, kPowersOfTwo } kind = Kind::kLinear;
  double lowest = 0, highest = 1;  // in the axis's own measure
  double measure(double value) const {
    switch (kind) {
      case Kind::kLogarithmic:
        return std::log10(value);
      case Kind::kPowersOfTwo:
        return std::log2(value);
      case Kind::kLinear:
        break;
    }
    return value;
  }
  double place(double measured) const {  // 0 at the bottom, 1 at the top
    return (measured - lowest) / (highest - lowest);
  }
  std::string label(double measured) const {
    switch (kind) {
      case Kind::kLogarithmic:
        return fmt::format("1e{:.0f}", measured);
      case Kind::kPowersOfTwo:
        return fmt::format("2^{:.0f}", measured);
      case Kind::kLinear:
        break;
    }
    return short_number(measured);
  }
};

// 1, 2 or 5 times a power of ten, so that the range has about kTicks of them.
double tick_distance(double range) {
  const double rough = range / kTicks, power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) return factor * power;
  }
  return 10 * power;
}

std::vector<double> ticks_of(const Axis& axis) {
  double distance = tick_distance(axis.highest - axis.lowest);
  if (axis.kind != Axis::Kind::kLinear) distance = std::max(1.0, std::ceil(distance));
  std::vector<double> ticks;
  for (double k = std::ceil(axis.lowest / distance); k * distance <= axis.highest; ++k) {
    ticks.push_back(k * distance == 0 ? 0 : k * distance);  // no -0
  }
  return ticks;
}

bool can_be_drawn(double value, bool positive_only) {
  return std::isfinite(value) && (!positive_only || value > 0);
}

Axis axis_of(const CurveBlock& block) {
  const bool powers = block.scale == CurveScale::kPowersOfTwo;
  double lowest = std::numeric_limits<double>::infinity(), highest = -lowest;
  for (const CurveSeries& series : block.series) {
    for (const double value : series.values) {
      if (!can_be_drawn(value, powers)) continue;
      lowest = std::min(lowest, value);
      highest = std::max(highest, value);
    }
  }
  Axis axis;
  if (!(lowest <= highest)) return axis;  // nothing to draw
  if (powers) {
    axis.kind = Axis::Kind::kPowersOfTwo;
  } else if (lowest > 0 && highest / lowest > kLogarithmicRatio) {
    axis.kind = Axis::Kind::kLogarithmic;
  }
  axis.lowest = axis.measure(lowest);
  axis.highest = axis.measure(highest);
  // Room above and below; where all values are equal, enough for a tick on either side.
  constexpr double kRoom = 0.04;
  const double range = axis.highest - axis.lowest;
  const double room = range > 0 ? kRoom * range : std::max(1.0, std::fabs(axis.lowest));
  axis.lowest -= room;
  axis.highest += room;
  return axis;
}

std::string value_text(const CurveBlock& block, double value) {
  if (!std::isfinite(value)) return "not finite";
  return block.scale == CurveScale::kPowersOfTwo ? scale_text(value) : short_number(value);
}

std::string style_of(const CurveSeries& series, size_t number) {
  return series.is_noise ? "noise" : fmt::format("line-{}", number % kStyles + 1);
}

// Of a series that ends early, only the parts that it has all values of.
std::vector<double> means_of(const CurveSeries& series, const Parts& parts) {
  std::vector<double> means;
  for (size_t p = 0; p < parts.count && parts.end(p) <= series.values.size(); ++p) {
    means.push_back(mean(series.values, parts.begin(p), parts.end(p)));
  }
  return means;
}

std::string path_of(const std::vector<double>& values, const Parts& parts, const Axis& axis) {
  std::string path;
  bool pen_is_up = true;
  for (size_t p = 0; p < values.size(); ++p) {
    if (!can_be_drawn(values[p], axis.kind != Axis::Kind::kLinear)) {
      pen_is_up = true;
      continue;
    }
    const double y = kUnits * (1 - axis.place(axis.measure(values[p])));
    const double x = kUnits * parts.place(p);
    // A point without neighbours is a line of no length, which has round ends. A loss scale holds
    // until it changes: its curve is a stair.
    if (pen_is_up) {
      path += fmt::format("M{:.1f} {:.1f}h0", x, y);
    } else if (axis.kind == Axis::Kind::kPowersOfTwo) {
      path += fmt::format("H{:.1f}V{:.1f}", x, y);
    } else {
      path += fmt::format("L{:.1f} {:.1f}", x, y);
    }
    pen_is_up = false;
  }
  return path;
}

struct Drawing {
  std::string lines, marks, legend;
};

void add_mark(double x, double y, const std::string& style, std::string_view sign,
              const std::string& text, Drawing& out) {
  constexpr double kPercent = 100;
  out.marks += fmt::format(
      "<span class=\"mark {}\" style=\"left:{:.2f}%;top:{:.2f}%\" title=\"{}\">{}</span>\n", style,
      kPercent * x, kPercent * (1 - y), html_text(text), sign);
}

void add_series(const CurveBlock& block, const CurveSeries& series, const std::string& style,
                const Parts& parts, const Axis& axis, Drawing& out) {
  const std::vector<double> values = means_of(series, parts);
  std::string texts;
  for (const double value : values) {
    texts += (texts.empty() ? "" : "|") + value_text(block, value);
  }
  const std::string name = html_text(series.name);
  out.lines += fmt::format(
      "<path class=\"{}\" d=\"{}\" data-name=\"{}\" data-values=\"{}\"><title>{}</title></path>\n",
      style, path_of(values, parts, axis), name, texts, name);
  out.legend += fmt::format(
      "<li><svg viewBox=\"0 0 28 8\" aria-hidden=\"true\"><path class=\"{}\" d=\"M1 "
      "4H27\"/></svg>{}"
      "</li>\n",
      style, name);
  const bool positive_only = axis.kind != Axis::Kind::kLinear;
  for (size_t p = 1; p < values.size(); ++p) {
    if (can_be_drawn(values[p], positive_only) || !can_be_drawn(values[p - 1], positive_only)) {
      continue;
    }
    add_mark(parts.place(p - 1), axis.place(axis.measure(values[p - 1])), style, "×",
             fmt::format("{}: not finite from {} {} on", series.name, block.x_title,
                         block.x[parts.begin(p)]),
             out);
    break;
  }
  for (const CurveMark& mark : series.marks) {
    if (mark.index >= series.values.size()) continue;
    const double value = series.values[mark.index];
    if (!can_be_drawn(value, positive_only)) continue;
    add_mark(parts.place(parts.part_of(mark.index)), axis.place(axis.measure(value)), style, "▼",
             fmt::format("{} {}: {}", block.x_title, block.x[mark.index], mark.text), out);
  }
}

std::string part_label(const CurveBlock& block, const Parts& parts, size_t part) {
  const size_t begin = parts.begin(part), last = parts.end(part) - 1;
  return begin == last ? block.x[begin] : block.x[begin] + ".." + block.x[last];
}

std::string x_ticks(const CurveBlock& block, const Parts& parts) {
  constexpr double kPercent = 100;
  std::string out;
  const auto last = static_cast<double>(parts.count - 1);
  const auto distance = static_cast<size_t>(std::max(1.0, last > 0 ? tick_distance(last) : 1.0));
  for (size_t part = 0; part < parts.count; part += distance) {
    out += fmt::format("<span style=\"left:{:.2f}%\">{}</span>", kPercent * parts.place(part),
                       html_text(block.x[parts.begin(part)]));
  }
  return out;
}

}  // namespace

std::string html_curves(const CurveBlock& block) {
  if (block.x.empty()) return "";
  const Parts parts{block.x.size(), std::min(block.x.size(), kMostPoints)};
  const Axis axis = axis_of(block);
  Drawing drawing;
  for (const bool noise : {true, false}) {  // noise lies behind the others
    size_t number = 0;
    for (const CurveSeries& series : block.series) {
      if (series.is_noise == noise) {
        add_series(block, series, style_of(series, number), parts, axis, drawing);
      }
      number += !series.is_noise;
    }
  }
  constexpr double kPercent = 100;
  std::string grid, y_ticks, points;
  for (const double tick : ticks_of(axis)) {
    const double from_top = 1 - axis.place(tick);
    grid += fmt::format("<path class=\"grid\" d=\"M0 {0:.1f}H{1}\"/>", kUnits * from_top, kUnits);
    y_ticks +=
        fmt::format("<span style=\"top:{:.2f}%\">{}</span>", kPercent * from_top, axis.label(tick));
  }
  for (size_t p = 0; p < parts.count; ++p) {
    points += (p == 0 ? "" : "|") + part_label(block, parts, p);
  }
  std::string caption = html_text(block.title);
  if (axis.kind == Axis::Kind::kLogarithmic) caption += ", logarithmic axis";
  if (parts.count < parts.size) {
    caption += fmt::format(", means of {} equal parts", parts.count);
  }
  const std::string x_title = html_text(block.x_title);
  return fmt::format(
      "<figcaption>{}</figcaption>\n<ul class=\"legend\">\n{}</ul>\n"
      "<div class=\"plot\"><div class=\"y\" aria-hidden=\"true\">{}</div>\n"
      "<div class=\"area\" tabindex=\"0\" data-x=\"{}\" data-x-title=\"{}\">"
      "<svg viewBox=\"0 0 {} {}\" preserveAspectRatio=\"none\" role=\"img\" "
      "aria-label=\"{}\">{}\n{}"
      "</svg>\n{}<div class=\"cursor\" hidden></div></div>\n"
      "<div class=\"x\" aria-hidden=\"true\">{}<b>{}</b></div></div>\n"
      "<p class=\"readout\" aria-live=\"polite\"></p>\n",
      caption, drawing.legend, y_ticks, html_text(points), x_title, kUnits, kUnits, caption, grid,
      drawing.lines, drawing.marks, x_ticks(block, parts), x_title);
}

}  // namespace lockstep
