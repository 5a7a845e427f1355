// The JSON of charts, as the page's script reads it.
#include <doctest/doctest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "reports/writers/chart_json.h"
#include "tests/reports/run/hand_made_report.h"

namespace lockstep {
namespace {

using nlohmann::json;

using testing::kNan;

TEST_CASE("curves: gaps, marks, five digits") {
  Curves curves;
  curves.x = {"0", "1", "2", "3", "4"};
  CurvePanel& panel = curves.panels.emplace_back();
  panel.series = {{.name = "a", .values = {0, 1.2345678, kNan, 3, 4}, .marks = {{1, "skipped"}}},
                  {.name = "b", .values = {4, 2}}};
  panel.bands = {{.name = "noise", .low = {0, 1}, .high = {1, 2}}};
  const json out = json::parse(chart_json(curves));
  CHECK(out["kind"] == "curves");
  CHECK_FALSE(out.contains("joined"));
  const json& drawn = out["panels"][0];
  CHECK(drawn["scale"] == "linear");
  CHECK(drawn["series"][0]["values"] == json::parse("[0, 1.2346, null, 3, 4]"));
  CHECK(drawn["series"][0]["marks"] == json::parse(R"([[1, 1, "skipped"]])"));
  CHECK(drawn["series"][1]["values"] == json::parse("[4, 2]"));
  CHECK(drawn["bands"][0]["high"] == json::parse("[1, 2]"));
}

TEST_CASE("curves of many steps are joined: means of losses, the last scale, extremes of bands") {
  Curves curves;
  CurvePanel losses, scales;
  losses.series.emplace_back().name = "a";
  losses.bands.emplace_back().name = "noise";
  scales.scale = CurveScale::kPowersOfTwo;
  scales.series.emplace_back().name = "a";
  for (size_t i = 0; i < 2 * kMostPoints; ++i) {
    curves.x.push_back(std::to_string(i));
    losses.series[0].values.push_back(static_cast<double>(1 + i % 2));
    losses.bands[0].low.push_back(static_cast<double>(1 + i % 2));
    losses.bands[0].high.push_back(static_cast<double>(5 + i % 2));
    scales.series[0].values.push_back(static_cast<double>(1 + i % 2));
  }
  losses.series[0].marks = {{7, "skipped"}};
  losses.series[0].values.resize(11);  // the sixth part is incomplete
  curves.panels = {losses, scales};
  const json out = json::parse(chart_json(curves));
  CHECK(out["joined"] == 2 * kMostPoints);
  CHECK(out["x"].size() == kMostPoints);
  CHECK(out["x"][1] == "2..3");
  const json& drawn = out["panels"][0];
  CHECK(drawn["series"][0]["values"] == json::parse("[1.5, 1.5, 1.5, 1.5, 1.5]"));
  CHECK(drawn["series"][0]["marks"] == json::parse(R"([[3, 7, "skipped"]])"));
  CHECK(drawn["bands"][0]["low"][0] == 1);
  CHECK(drawn["bands"][0]["high"][0] == 6);
  CHECK(out["panels"][1]["series"][0]["values"][0] == 2);
}

TEST_CASE("no < is left, whatever a name holds") {
  HeatMap map;
  map.rows.emplace_back("</script><img>");
  map.columns.emplace_back("<!--");
  HeatView& view = map.views.emplace_back();
  view.choice = std::vector<std::string>(1, std::string(1, '<'));
  view.unit = std::string(1, '<');
  view.cells = {{.row = 0, .column = 0, .value = 0.5}};
  const std::string text = chart_json(map);
  CHECK(text.find('<') == std::string::npos);
  const json out = json::parse(text);
  CHECK(out["rows"][0] == "</script><img>");
  CHECK(out["views"][0]["cells"][0] == json::parse("[0, 0, 0.5, -1, 0]"));
}

}  // namespace
}  // namespace lockstep
