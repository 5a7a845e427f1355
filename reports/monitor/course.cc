// Loss, loss scale and norms over the steps.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "reports/monitor/monitor_page.h"
#include "reports/writers/cells.h"
#include "reports/writers/number_text.h"

namespace lockstep {
namespace {

constexpr int kSparklineWidth = 40;
constexpr size_t kMostPoints = 2000;  // of a chart

struct Course {
  std::string name;
  std::vector<double> values;  // by step
};

bool is_known(const Course& course) {
  return std::ranges::any_of(course.values, [](double x) { return !std::isnan(x); });
}

std::vector<Course> courses_of(const MonitorReport& report) {
  std::vector<Course> all = {{"loss", report.loss},
                             {"loss scale", report.scale},
                             {"gradients' norm", report.gradient_norm},
                             {"learning rate", report.lr},
                             {"seconds", report.seconds},
                             {"updates' norm", report.update_norm},
                             {"weights' norm", report.weight_norm}};
  std::erase_if(all, [](const Course& course) { return !is_known(course); });
  return all;
}

TableBlock table_of(const std::vector<Course>& courses) {
  TableBlock out;
  out.columns = {{"", Align::kLeft}, {"first"}, {"smallest"},
                 {"largest"},        {"last"},  {"course", Align::kLeft, true}};
  for (const Course& course : courses) {
    double low = INFINITY, high = -INFINITY;
    for (const double x : course.values) {
      if (!std::isfinite(x)) continue;
      low = std::min(low, x);
      high = std::max(high, x);
    }
    out.rows.push_back({course.name, number_cell(course.values.front()), number_cell(low),
                        number_cell(high), number_cell(course.values.back()),
                        sparkline(std::span(course.values), kSparklineWidth)});
  }
  out.notes = {"Norms of updates and weights are of measured steps. x: not finite."};
  return out;
}

// Every stride-th value, and where one in between is not finite, that one: a monitored run may have
// a million steps, more than a page should hold.
std::vector<double> thinned(const std::vector<double>& values, size_t stride) {
  std::vector<double> out;
  for (size_t i = 0; i < values.size(); i += stride) {
    const auto part = std::span(values).subspan(i, std::min(stride, values.size() - i));
    const auto bad = std::ranges::find_if(part, [](double x) { return !std::isfinite(x); });
    out.push_back(bad == part.end() ? part.front() : *bad);
  }
  return out;
}

Blocks write_course(const MonitorReport& report) {
  const std::vector<Course> courses = courses_of(report);
  const auto steps = static_cast<size_t>(report.steps());
  const size_t stride = (steps + kMostPoints - 1) / kMostPoints;
  Curves curves;
  curves.x_title = "step";
  for (size_t step = 0; step < steps; step += stride) curves.x.push_back(fmt::format("{}", step));
  for (const Course& course : courses) {
    if (course.values.size() != steps || course.name == "seconds") continue;
    const bool is_scale = course.name == "loss scale";
    const bool is_constant =
        std::ranges::all_of(course.values, [&](double x) { return x == course.values.front(); });
    if (is_constant) continue;
    CurvePanel panel{.title = course.name,
                     .scale = is_scale ? CurveScale::kPowersOfTwo : CurveScale::kLinear,
                     .series = {{.name = "live", .values = thinned(course.values, stride)}}};
    if (course.name == "loss") {
      panel.mark_name = "alarm";
      for (const LiveAlarm& alarm : report.alarms) {
        panel.series.front().marks.push_back(
            {static_cast<size_t>(alarm.step) / stride, alarm.rule + ": " + alarm.sentence});
      }
    }
    curves.panels.push_back(std::move(panel));
  }
  if (curves.panels.empty()) return {table(table_of(courses))};
  return {chart("Course of the run", std::move(curves), table_of(courses))};
}

}  // namespace

MonitorSection course_monitor_section() {
  return {"course", "Course", write_course};
}

}  // namespace lockstep
