// The charts of a report written by hand: what a section puts into them, and their JSON.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "reports/run/section.h"
#include "reports/writers/chart_json.h"
#include "tests/reports/run/hand_made_report.h"

namespace lockstep {
namespace {

using nlohmann::json;
using testing::hand_made;

constexpr size_t kBroken = 3;  // the lane pure-fp16

Blocks written(const Report& report, std::string_view name) {
  const auto section = std::ranges::find(sections(), name, &Section::name);
  REQUIRE(section != sections().end());
  return section->write(report);
}

// The first chart of a section.
template <typename Chart>
Chart chart_of(const Report& report, std::string_view name) {
  for (const Block& block : written(report, name)) {
    if (const auto* found = std::get_if<ChartBlock>(&block)) return std::get<Chart>(found->chart);
  }
  FAIL("no chart in " << name);
  return {};
}

Report with_pictures() {
  Report report = hand_made();
  testing::add_pictures(report);
  return report;
}

TEST_CASE("heat map: the gravest view and layer lead, all roles are joined, quiet layers go out") {
  const Report report = with_pictures();
  const HeatMap map = chart_of<HeatMap>(report, "heat-map");
  CHECK(map.rows == std::vector<std::string>{"fc2", "fc1"});
  CHECK(map.other_order == std::vector<uint32_t>{1, 0});  // fc1, fc2: as in the network
  CHECK(map.columns == std::vector<std::string>{"0", "1"});
  REQUIRE(map.views.size() == 4);
  CHECK(map.views[0].choice == std::vector<std::string>{"pure-fp16", "not finite", "activation"});
  const auto all = std::ranges::find_if(
      map.views, [](const HeatView& view) { return view.choice[2] == "all roles"; });
  REQUIRE(all != map.views.end());
  REQUIRE(all->cells.size() == 2);
  const auto fc1 = std::ranges::find(all->cells, 1u, &HeatCell::row);
  CHECK(fc1->value == 0.25);  // the worse of two roles
  CHECK(fc1->site == 0);
  CHECK(all->lane == "pure-fp16");
}

TEST_CASE("without views there is no picture, and the page says what it lacks") {
  const Report report = hand_made();
  for (const char* name : {"heat-map", "histogram", "scales", "error-growth", "chains", "costs"}) {
    CAPTURE(name);
    CHECK(written(report, name).empty());
  }
  std::string lacks;
  for (const Block& block : written(report, "missing")) lacks += std::get<Paragraph>(block).text;
  for (const char* part : {"recommendation", "seeds", "loss scales that fit", "errors grow"}) {
    CAPTURE(part);
    CHECK(lacks.find(part) != std::string::npos);
  }
  CHECK(lacks.find("one ulp") == std::string::npos);  // a twin was run
}

TEST_CASE("histograms: the finding's site leads; a gradient has the scale and the shares") {
  Report report = with_pictures();
  report.lanes[kBroken].findings[0].site = 1;
  const Histograms out = chart_of<Histograms>(report, "histogram");
  REQUIRE(out.views.size() == 2);
  CHECK(out.views[0].site == 1);
  CHECK(out.views[1].zeros == 4);
  CHECK(out.views[1].nonfinite == 5);
  CHECK(out.views[1].format == "fp16");
  const auto fp16 = std::ranges::find(out.windows, "fp16", &FormatWindow::name);
  REQUIRE(fp16 != out.windows.end());
  CHECK(fp16->min_subnormal == -24);
  CHECK(fp16->min_normal == -14);
  CHECK(fp16->max == 15);
  const json data = json::parse(chart_json(out));
  CHECK(data["gradients"][0]["toZero"] == json({1, 0.5}));
  CHECK(data["gradients"][0]["reference"]["first"] == -30);
  CHECK(data["firstScale"] == kMinShownScale);
  CHECK(data["reference"] == "fp32");
}

TEST_CASE("intervals: a bar for each layer with gradients, the common ones, where the lane was") {
  const Report report = with_pictures();
  const Intervals out = chart_of<Intervals>(report, "scales");
  REQUIRE(out.rows.size() == 1);
  CHECK(out.rows[0].low == -3);
  CHECK(out.rows[0].high_text == "b");
  CHECK(out.high == 14);
  REQUIRE(out.marks.size() == 2);
  CHECK(out.marks[0].value == 16);
  CHECK(out.marks[1].value == 15);
}

TEST_CASE("error growth: accumulated and own errors of each lane, gaps where nothing is known") {
  const Report report = with_pictures();
  const Curves out = chart_of<Curves>(report, "error-growth");
  CHECK(out.x == std::vector<std::string>{"fc1", "fc2"});
  REQUIRE(out.panels[0].series.size() == 2);
  CHECK(out.panels[0].series[0].values == std::vector<double>{1e-3, 2e-3});
  CHECK_FALSE(out.panels[0].series[0].is_points);
  CHECK(out.panels[0].series[1].is_points);  // one layer's rounding does not lead to the next's
  CHECK(std::isnan(out.panels[0].series[1].values[1]));
}

TEST_CASE("chains: the origin with its value and limit, then what followed") {
  const Report report = with_pictures();
  const Blocks blocks = written(report, "chains");
  REQUIRE(blocks.size() == 1);
  const auto& chain = std::get<ChainBlock>(blocks[0]);
  CHECK(chain.title == "pure-fp16, step 39: overflow in fc1 linear (model.py:41).");
  CHECK(chain.left_out == 2);
  CHECK(chain.links[0].what == "largest value here 1.1e5, fp16 ends at 65504; 25.0% not finite");
  CHECK(chain.links[0].source_line == "model.py:41");
  CHECK(chain.links[0].window->max == 15);
  CHECK(chain.links[1].what == "largest value here 2, fp16 holds up to 65504; 50.0% became zero");
  CHECK_FALSE(chain.links[1].seen);
}

TEST_CASE("costs: time and memory of each lane; what lanes that train as the reference save") {
  const Report report = with_pictures();
  const Blocks blocks = written(report, "costs");
  const auto& table = std::get<TableBlock>(blocks[0]);
  CHECK(table.rows[1][1] == "0.50");
  CHECK(table.rows[1][2] == "1 KiB");
  CHECK(table.rows[2][2] == "-");
  CHECK(std::get<Paragraph>(blocks[1]).text.starts_with("1 of 3 products do not fill"));
  const Blocks verdict = written(report, "verdict");
  CHECK(std::ranges::any_of(verdict, [](const Block& block) {
    const auto* text = std::get_if<Paragraph>(&block);
    return text != nullptr && text->text ==
                                  "At best, by roofline on h100: torch-autocast-fp16 takes 0.50 "
                                  "of fp32's time and 0.25 of its memory.";
  }));
}

TEST_CASE("chart JSON: no number that JSON lacks, no tag, long axes joined") {
  Curves curves{.x_title = "</script>", .x = {}, .panels = {{.title = "loss"}}};
  CurveSeries& loss = curves.panels[0].series.emplace_back();
  loss.name = "<img>";
  const size_t steps = 2 * kMostPoints;
  for (size_t i = 0; i < steps; ++i) {
    curves.x.push_back(std::to_string(i));
    loss.values.push_back(i == 3 ? std::numeric_limits<double>::infinity()
                                 : static_cast<double>(i));
  }
  loss.marks = {{.index = 5, .text = "skipped"}};
  curves.panels[0].bands = {{.name = "twins", .low = loss.values, .high = loss.values}};
  const std::string text = chart_json(curves);
  CHECK(text.find('<') == std::string::npos);
  const json data = json::parse(text);
  CHECK(data["xTitle"] == "</script>");
  CHECK(data["joined"] == steps);
  CHECK(data["x"].size() == kMostPoints);
  CHECK(data["x"][0] == "0..1");
  const json& values = data["panels"][0]["series"][0]["values"];
  CHECK(values[0] == 0.5);
  CHECK(values[1].is_null());
  CHECK(data["panels"][0]["series"][0]["marks"][0] == json({2, 5, "skipped"}));
  CHECK(data["panels"][0]["bands"][0]["low"][2] == 4);
  CHECK(data["panels"][0]["bands"][0]["high"][2] == 5);
}

}  // namespace
}  // namespace lockstep
