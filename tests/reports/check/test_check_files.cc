// A check's result for programs: JSON, JUnit XML, SARIF and GitHub's annotations.
#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "reports/check/check_github.h"
#include "reports/check/check_json.h"
#include "reports/check/check_junit.h"
#include "reports/check/check_sarif.h"
#include "reports/words/source_place.h"
#include "tests/reports/check/hand_made_check.h"
#include "tests/reports/golden_file.h"

namespace lockstep {
namespace {

using testing::golden_text;
using testing::holds;

constexpr const char* kHostileName = "a\"<b>&'%0A::error::\n::error file=x::y\x1b[31m]]>";

int64_t lines(const std::string& text) {
  return std::ranges::count(text, '\n');
}

TEST_CASE("check as JSON: a golden file") {
  const std::string text = check_json(testing::regression());
  CHECK(text == golden_text("check.json", text));
}

TEST_CASE("check as JSON, JUnit and SARIF: names stay text, and JSON stays valid") {
  const CheckResult result = testing::regression_named(kHostileName);
  CHECK(nlohmann::json::parse(check_json(result))["run"] == kHostileName);
  CHECK(nlohmann::json::accept(check_sarif(result, "1.0")));
  const std::string junit = check_junit(result);
  CHECK_FALSE(holds(junit, "<b>"));
  CHECK_FALSE(holds(junit, "\x1b"));
  CHECK_FALSE(holds(junit, "\n::error"));
}

TEST_CASE("check as JUnit: failure, error and skipped are distinct") {
  const std::string text = check_junit(testing::regression());
  CHECK(text == golden_text("check.junit.xml", text));
  CHECK(holds(text, "tests=\"6\" failures=\"3\" errors=\"1\" skipped=\"1\""));
  const std::string none = check_junit(testing::inconclusive());
  CHECK(holds(none, "tests=\"1\" failures=\"0\" errors=\"0\" skipped=\"1\""));
  CheckResult identical;
  identical.verdict = CheckVerdict::kIdentical;
  CHECK(holds(check_junit(identical), "tests=\"1\" failures=\"0\" errors=\"0\" skipped=\"0\""));
}

TEST_CASE("check as SARIF: a golden file; one result for a cause, which counts its effects") {
  const std::string text = check_sarif(testing::regression(), "1.0");
  CHECK(text == golden_text("check.sarif", text));
  const auto most = nlohmann::json::parse(check_sarif(testing::many_alarms(5010, 3), "1.0"));
  REQUIRE(most["runs"][0]["results"].size() == 3);  // no lane is the reference
  CHECK(holds(most["runs"][0]["results"][2].dump(), "669 more alarms follow from it"));
}

TEST_CASE("an error is no empty result: JUnit <error>, SARIF, JSON and annotations say it") {
  const CheckResult result = testing::failed();
  const std::string junit = check_junit(result);
  CHECK(holds(junit, "tests=\"1\" failures=\"0\" errors=\"1\" skipped=\"0\""));
  CHECK(holds(junit, "<error message=\"run.h5: truncated &lt;at&gt; 4096 bytes; run it again\""));
  CHECK(holds(junit, "rules.toml: line 3"));
  const auto sarif = nlohmann::json::parse(check_sarif(result, "1.0"));
  const auto& invocation = sarif["runs"][0]["invocations"][0];
  CHECK(invocation["executionSuccessful"] == false);
  CHECK(invocation["exitCode"] == 2);
  REQUIRE(invocation["toolExecutionNotifications"].size() == 2);
  CHECK(invocation["toolExecutionNotifications"][0]["level"] == "error");
  const auto json = nlohmann::json::parse(check_json(result));
  CHECK(json["verdict"] == "error");
  CHECK(json["exit_code"] == 2);
  CHECK(json["problems"].size() == 2);
  const std::string annotations = github_annotations(result);
  CHECK(lines(annotations) == 2);
  CHECK(annotations.starts_with("::error title=Lockstep%3A not checked::run.h5: truncated"));
  CheckResult many = result;
  many.problems.assign(100, "x");
  CHECK(lines(github_annotations(many)) == 10);
  CHECK(holds(github_annotations(many), "+91 more problems"));
}

TEST_CASE("SARIF: a path is a URI") {
  CheckResult result = testing::regression();
  const auto uri_of = [&](const std::string& line) {
    result.alarms[0].source_line = line;
    const auto json = nlohmann::json::parse(check_sarif(result, "1.0"));
    const auto& location = json["runs"][0]["results"][0]["locations"][0];
    return location.contains("physicalLocation")
               ? location["physicalLocation"]["artifactLocation"]["uri"].get<std::string>()
               : std::string();
  };
  CHECK(uri_of("a b/c%.py:3") == "a%20b/c%25.py");
  CHECK(uri_of("/x/y.py:3") == "file:///x/y.py");
  CHECK(uri_of("y.py").empty());
}

TEST_CASE("annotations for GitHub: at most ten, the rest counted") {
  CHECK(lines(github_annotations(testing::regression())) == 1);
  CHECK(lines(github_annotations(testing::many_alarms(100, 10))) == 10);
  const std::string many = github_annotations(testing::many_alarms(100, 20));
  CHECK(lines(many) == 10);
  CHECK(holds(many, "+11 more"));
  const std::string none = github_annotations(testing::inconclusive());
  CHECK(none ==
        "::warning title=Lockstep%3A inconclusive::no site of the run has a counterpart in the "
        "baseline\n");
}

TEST_CASE("annotations for GitHub: names are escaped, so that each stays one line") {
  const std::string text = github_annotations(testing::regression_named(kHostileName));
  size_t at = 0;
  for (int64_t line = 0; line < lines(text); ++line) {
    CHECK(text.substr(at).starts_with("::error "));
    at = text.find('\n', at) + 1;
  }
  CHECK(holds(text, "%250A"));
  CHECK_FALSE(holds(text, "\x1b"));
  CheckResult result = testing::regression();
  result.alarms[0].source_line = "a,b:c.py:12";
  CHECK(github_annotations(result).starts_with("::error file=a%2Cb%3Ac.py,line=12,title="));
}

TEST_CASE("a job's summary is cut at a line before it is too long") {
  const std::string text = "first\nsecond\n" + std::string(1000, 'x') + "\n";
  CHECK(summary_that_fits(text, 0) == text);
  const std::string cut = summary_that_fits(text, kMostSummaryBytes - 500);
  CHECK(cut.size() < 500);
  CHECK(cut.starts_with("first\nsecond\n"));
  CHECK(holds(cut, "does not fit"));
  CHECK(summary_that_fits(text, kMostSummaryBytes).empty());
}

TEST_CASE("a source line taken apart") {
  CHECK(source_place("model.py:12")->file == "model.py");
  CHECK(source_place("model.py:12")->line == 12);
  CHECK(source_place("c:/x.py:3")->file == "c:/x.py");
  for (const char* none : {"", "model.py", ":3", "model.py:", "model.py:0", "model.py:x", "x:-1"}) {
    CAPTURE(none);
    CHECK_FALSE(source_place(none));
  }
}

}  // namespace
}  // namespace lockstep
