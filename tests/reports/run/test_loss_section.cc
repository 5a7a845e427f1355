// The chart of the losses: bands of noise, ends of lanes, the loss scale beneath.
#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <variant>

#include "reports/run/section.h"
#include "tests/reports/run/hand_made_report.h"

namespace lockstep {
namespace {

using testing::hand_made;

ChartBlock loss_chart(const Report& report) {
  const auto section = std::ranges::find(sections(), "loss", &Section::name);
  REQUIRE(section != sections().end());
  return std::get<ChartBlock>(section->write(report).at(0));
}

TEST_CASE("losses: a curve per lane, the twins as a band, a mark where a lane breaks") {
  const ChartBlock chart = loss_chart(hand_made());
  const auto& curves = std::get<Curves>(chart.chart);
  const CurvePanel& losses = curves.panels.at(0);
  REQUIRE(losses.series.size() == 3);
  CHECK(losses.series[0].name == "fp32");
  REQUIRE(losses.bands.size() == 1);
  CHECK(losses.bands[0].name == "fp32 and its twin");
  CHECK(losses.bands[0].low.back() == doctest::Approx(0.5));
  CHECK(losses.bands[0].high.back() == doctest::Approx(0.501));
  const CurveSeries& broken = losses.series[2];
  REQUIRE(broken.marks.size() == 1);
  CHECK(broken.marks[0].index == 40);
  CHECK(broken.marks[0].text == "the loss is not finite; the lane stopped at step 46");
}

TEST_CASE("losses: the loss scale is beneath, its skips with their culprits") {
  const ChartBlock chart = loss_chart(hand_made());
  const auto& curves = std::get<Curves>(chart.chart);
  REQUIRE(curves.panels.size() == 2);
  const CurvePanel& scales = curves.panels[1];
  CHECK(scales.scale == CurveScale::kPowersOfTwo);
  REQUIRE(scales.series.size() == 1);
  CHECK(scales.series[0].values[3] == 65536);
  REQUIRE(scales.series[0].marks.size() == 1);
  CHECK(scales.series[0].marks[0].index == 3);
  CHECK(scales.series[0].marks[0].text ==
        "skipped, first not finite: fc1 linear_backward_weight grad_weight output");
}

TEST_CASE("losses: several seeds are a band, from the lowest to the highest of each step") {
  Report report = hand_made();
  report.seeds = {1, 2};
  report.reference_losses = {{3, 2, 1}, {2, 4, 1}};
  const ChartBlock chart = loss_chart(report);
  const CurveBand& band = std::get<Curves>(chart.chart).panels[0].bands.at(0);
  CHECK(band.name == "fp32, 2 seeds");
  CHECK(band.low == std::vector<double>{2, 2, 1});
  CHECK(band.high == std::vector<double>{3, 4, 1});
}

TEST_CASE("losses: without a twin and a scaler, one panel, and a note that the band is missing") {
  Report report = hand_made();
  report.twins.clear();
  report.lanes.erase(report.lanes.begin() + 1, report.lanes.begin() + 3);
  const ChartBlock chart = loss_chart(report);
  const auto& curves = std::get<Curves>(chart.chart);
  CHECK(curves.panels.size() == 1);
  CHECK(curves.panels[0].bands.empty());
  CHECK(chart.table.notes.back().starts_with("No twin ran"));
}

TEST_CASE("losses of very different sizes are on a logarithmic axis") {
  Report report = hand_made();
  CHECK(std::get<Curves>(loss_chart(report).chart).panels[0].scale == CurveScale::kLinear);
  report.lanes[2].loss[5] = 1e5;
  CHECK(std::get<Curves>(loss_chart(report).chart).panels[0].scale == CurveScale::kLogarithmic);
}

}  // namespace
}  // namespace lockstep
