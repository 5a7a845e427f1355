// A check's result as text, Markdown and HTML: golden files, sizes, and names from outside.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "reports/check/alarm_tables.h"
#include "reports/check/check_text.h"
#include "reports/writers/html_page.h"
#include "reports/writers/markdown_page.h"
#include "src/core/text.h"
#include "tests/reports/check/hand_made_check.h"
#include "tests/reports/golden_file.h"

namespace lockstep {
namespace {

using testing::golden_text;
using testing::holds;

constexpr const char* kHostile = "</td><script>alert(1)</script> | @all `x` ![](http://x.y/z)\n# h";

TEST_CASE("the text of a check: verdict and origin, limits, changes, a table") {
  const std::string text = check_text(testing::regression(), {});
  CHECK(text == golden_text("check.txt", text));
  CHECK(holds(text,
              "REGRESSION: lane fp32, step 0: ln1 layer_norm output (model.py:12): the values "
              "are"));
}

TEST_CASE("a baseline of another environment is named right after the verdict") {
  CheckResult result = testing::regression();
  result.baseline_note = "b has no baseline of this environment; x.json is the nearest";
  const std::vector<std::string> lines = split(check_text(result, {}), '\n');
  const auto note = std::ranges::find_if(
      lines, [](const std::string& line) { return line.starts_with("b has no baseline of"); });
  REQUIRE(note != lines.end());
  CHECK(note - lines.begin() < 8);
}

TEST_CASE("the text of a check that could not compare") {
  const std::string text = check_text(testing::inconclusive(), {});
  CHECK(holds(text, "INCONCLUSIVE: no site of the run has a counterpart in the baseline."));
  CHECK_FALSE(holds(text, "judged against"));
}

TEST_CASE("the Markdown of a check: a golden file; it fits into a comment however much is wrong") {
  const std::string text = markdown_page(check_page(testing::regression()));
  CHECK(text == golden_text("check.md", text));
  const std::string most = markdown_page(check_page(testing::many_alarms(20'000, 20)));
  CHECK(most.size() < kMostMarkdownBytes);
  CHECK(holds(most, "REGRESSION"));
  CHECK(holds(most, "<details>"));
}

TEST_CASE("the Markdown of a check that failed is a short block with every problem") {
  const std::string text = markdown_page(check_page(testing::failed()));
  CHECK(holds(text, "**ERROR**: "));
  CHECK(holds(text, "rules.toml: line 3"));
  CHECK_FALSE(holds(text, "judged against"));
  CHECK(text.size() < 1000);
}

TEST_CASE("the HTML and Markdown of a check: names cannot become markup") {
  const ReportPage page = check_page(testing::regression_named(kHostile));
  const std::string html = html_page(page, "");
  CHECK_FALSE(holds(html, "<script>alert"));
  CHECK(holds(html, "&lt;script&gt;alert"));
  const std::string markdown = markdown_page(page);
  CHECK_FALSE(holds(markdown, "\n# h"));
  std::string outside;  // of code fences, in which nothing is markup
  const std::vector<std::string> parts = split(markdown, '\n');
  bool is_code = false;
  for (const std::string& line : parts) {
    if (line == "```") is_code = !is_code;
    if (!is_code) outside += line + "\n";
  }
  CHECK_FALSE(holds(outside, "@all"));
  CHECK_FALSE(holds(outside, "![]"));
  CHECK_FALSE(holds(outside, "<script>"));
}

TEST_CASE("alarms by cause: what was changed, or the first place, once for all lanes") {
  CheckResult result = testing::regression();
  REQUIRE(causes_of(result.alarms).size() == 1);  // the reference has alarms: all follow from one
  CHECK(causes_of(result.alarms)[0].following == 3);
  Alarm setting{.lane = "fp32", .finding = std::string(kSetting), .sentence = "lr: 0.1 -> 0.2"};
  result.alarms.insert(result.alarms.begin(), setting);
  setting.sentence = "momentum: 0.9 -> 0";
  result.alarms.insert(result.alarms.begin(), setting);
  std::vector<AlarmCause> causes = causes_of(result.alarms);
  REQUIRE(causes.size() == 2);
  CHECK(causes[0].first->sentence == "momentum: 0.9 -> 0");
  CHECK(causes[0].following == 4);
  CHECK(causes[1].following == 0);
  CheckResult lanes = testing::many_alarms(6, 2);
  causes = causes_of(lanes.alarms);
  REQUIRE(causes.size() == 2);
  CHECK(causes[1].first->lane == "lane1");
  CHECK(causes[1].following == 2);
  for (Alarm& alarm : lanes.alarms) alarm.site = 5;
  causes = causes_of(lanes.alarms);
  REQUIRE(causes.size() == 1);
  CHECK(causes[0].following == 5);
  CHECK(causes_of({}).empty());
}

TEST_CASE("alarms are counted by lane and metric; first and worst are named") {
  const CheckResult result = testing::regression();
  const std::vector<AlarmGroup> groups = group_alarms(result.alarms);
  REQUIRE(groups.size() == 3);
  CHECK(groups[0].lane == "fp32");
  CHECK(groups[0].subject == "first_magnitude");
  CHECK(groups[0].count == 2);
  CHECK(groups[0].first->layer == "ln1");
  CHECK(groups[0].worst->layer == "ln2");
  CHECK(groups[1].subject == "overflow");
  CHECK(groups[2].subject == "end_loss");
}

}  // namespace
}  // namespace lockstep
