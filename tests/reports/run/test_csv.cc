// Tables as CSV: quoting, names of files, the numbers of the charts.
#include <doctest/doctest.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <set>
#include <string>

#include "reports/writers/chart_csv.h"
#include "reports/writers/csv_writer.h"
#include "src/core/text.h"
#include "tests/reports/run/hand_made_report.h"

namespace lockstep {
namespace {

using testing::hand_made;

const CsvTable* find(const std::vector<CsvTable>& tables, const std::string& name) {
  const auto found = std::ranges::find(tables, name, &CsvTable::name);
  return found == tables.end() ? nullptr : &*found;
}

// The fields of a line without quotes inside quotes.
std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> fields(1);
  bool is_quoted = false;
  for (const char c : line) {
    if (c == '"') {
      is_quoted = !is_quoted;
    } else if (c == ',' && !is_quoted) {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  return fields;
}

TEST_CASE("CSV: cells are quoted as RFC 4180 says, formulas are disarmed") {
  const CsvRows rows = {
      {"a", "b,c", "d\"e", "f\ng"}, {"=1+2", "-1.5", "-", "@x,y"}, {"-cmd", "+0.0050", "", "-inf"}};
  CHECK(csv_text(rows) ==
        "a,\"b,c\",\"d\"\"e\",\"f\ng\"\r\n"
        "'=1+2,-1.5,-,\"'@x,y\"\r\n"
        "'-cmd,+0.0050,,-inf\r\n");
  CHECK(csv_text(CsvRows{{"\x1b[31m", "\t=1", "\r@x", "\xff"}}) ==
        "\\u001b[31m,'\\u0009=1,'\\u000d@x,\\xff\r\n");
}

TEST_CASE("CSV: every table of the hand-made report has its own name, fit for a file") {
  Report report = hand_made();
  testing::add_pictures(report);
  report.lanes[3].info.name = "../my lane.toml";
  report.lanes[3].sums = {{.samples = 9, .compared = 8, .addends = 7, .swamped = 2}};
  const std::vector<CsvTable> tables = csv_tables(page_sections(testing::advised(report), true));
  std::set<std::string> names;
  for (const CsvTable& table : tables) {
    CAPTURE(table.name);
    CHECK(names.insert(table.name).second);
    CHECK(table.name.find('/') == std::string::npos);
    const std::vector<std::string> columns =
        fields_of(table.text.substr(0, table.text.find("\r\n")));
    CHECK(columns.size() >= 2);
    for (const std::string& column : columns) {
      CAPTURE(column);
      CHECK_FALSE(column.empty());
      CHECK(std::ranges::count(columns, column) == 1);
    }
    const size_t dash = table.name.rfind('-');
    const bool is_numbered = dash != std::string::npos && dash + 2 == table.name.size() &&
                             std::isdigit(table.name.back());
    CHECK_FALSE(is_numbered);  // named by its subject, not by its place
  }
  for (const std::string name : {"lanes", "loss", "loss-curves", "layers-.._my_lane.toml",
                                 "loss-scale-torch-autocast-fp16", "provenance"}) {
    CAPTURE(name);
    CHECK(names.contains(name));
  }
}

TEST_CASE("CSV: numbers have all digits, what was not measured is empty") {
  Report report = hand_made();
  report.lanes[3].judgement.gap = std::numeric_limits<double>::quiet_NaN();
  const std::vector<CsvTable> tables = csv_tables(page_sections(report, true));
  const CsvTable* lanes = find(tables, "lanes");
  REQUIRE(lanes != nullptr);
  const std::vector<std::string> lines = split(lanes->text, '\n');
  CHECK(lines[0] == "lane,verdict,loss,gap,held-out,distance,skips,scale,died,time\r");
  CHECK(lines[2] ==
        "torch-autocast-fp16,fine,0.505,0.0050000000000000044,0.968,0.01,1,32768,,3.25\r");
  CHECK(lines[3] == "pure-fp16,broke,nan,,,,,,46,3.25\r");
  const CsvTable* layers = find(tables, "layers-pure-fp16");
  REQUIRE(layers != nullptr);
  CHECK(layers->text.find(",0.421,0.1,0,7,") != std::string::npos);
}

TEST_CASE("CSV: tables of one name are numbered") {
  TableBlock block;
  block.columns = {{"x"}, {"y"}};
  const std::vector<CsvTable> tables =
      csv_tables({{"s", "S", {block, paragraph("-"), block, block}}});
  REQUIRE(tables.size() == 3);
  CHECK(tables[0].name == "s");
  CHECK(tables[1].name == "s-2");
  CHECK(tables[2].name == "s-3");
}

TEST_CASE("CSV: the curves of the loss have all digits, and end where a lane ends") {
  Report report = hand_made();
  report.lanes[2].loss = {0.1, 1.0 / 3};
  const std::vector<CsvTable> tables = csv_tables(page_sections(report, true));
  const CsvTable* loss = find(tables, "loss-curves");
  REQUIRE(loss != nullptr);
  const std::vector<std::string> lines = split(loss->text, '\n');
  REQUIRE(lines.size() == 102);
  CHECK(lines[0].starts_with("step,loss: fp32,"));
  CHECK(lines[0].find(",loss scale: torch-autocast-fp16") != std::string::npos);
  CHECK(lines[2].find(",0.3333333333333333,") != std::string::npos);
  CHECK(lines[3].find(",,") != std::string::npos);
  CHECK(lines[41].find(",nan,") != std::string::npos);
}

TEST_CASE("CSV: the other charts, a row per point") {
  HeatMap heat{.x_title = "step",
               .y_title = "layer",
               .rows = {"fc1", "fc2"},
               .columns = {"0"},
               .selectors = {"lane"},
               .views = {}};
  heat.views = {
      {.choice = {"half"}, .unit = "", .lane = "half", .cells = {{.row = 1, .value = 0.1}}}};
  CHECK(chart_csv(heat) ==
        CsvRows{{"lane", "layer", "step", "value"}, {"half", "fc2", "0", "0.1"}});

  Histograms histograms;
  histograms.views = {{.site = 3,
                       .lane = "half",
                       .layer = "fc1",
                       .role = "weight",
                       .label = "w",
                       .source_line = "m.py:1",
                       .format = "fp16",
                       .seen = {.first = -2, .counts = {5, 0, 7}},
                       .zeros = 2,
                       .scale = ""}};
  const CsvRows rows = chart_csv(histograms);
  REQUIRE(rows.size() == 4);
  CHECK(rows[1][7] == "zero");
  CHECK(rows[2] ==
        std::vector<std::string>{"half", "fc1", "weight", "w", "m.py:1", "fp16", "", "-2", "5"});
  CHECK(rows[3][7] == "0");

  Intervals intervals;
  intervals.rows = {{"fc1", 1, 2, "lo", "hi"}};
  intervals.low = 1;
  intervals.high = 2;
  CHECK(chart_csv(intervals)[1] == std::vector<std::string>{"fc1", "1", "2", "lo", "hi"});
  Scatter scatter{.x_title = "cost",
                  .y_title = "gap",
                  .points = {{.name = "a", .group = "g", .x = 1, .y = 0.5, .is_chosen = true}}};
  CHECK(chart_csv(scatter)[1] == std::vector<std::string>{"a", "g", "1", "0.5", "", "1"});
}

}  // namespace
}  // namespace lockstep
