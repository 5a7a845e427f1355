// The report of a monitored run: every section, and its JSON.
#include "reports/monitor/monitor_page.h"

#include <doctest/doctest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "reports/writers/html_page.h"
#include "reports/writers/markdown_page.h"
#include "tests/monitor/monitored.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing {
namespace {

MonitorReport monitored_report() {
  const TemporaryFolder folder;
  record_monitored(folder.file("live.h5"), /*steps=*/30, /*every=*/10);
  return read_monitor_report(RunFile::of_any_run(folder.file("live.h5")));
}

std::vector<std::string> section_names(const ReportPage& page) {
  std::vector<std::string> names;
  for (const auto& section : page.sections) names.emplace_back(section.name);
  return names;
}

}  // namespace

TEST_CASE("a monitored run's report has every section, none of them empty") {
  const MonitorReport report = monitored_report();
  std::vector<std::string> all;
  for (const MonitorSection& section : monitor_sections()) {
    CAPTURE(section.name);
    CHECK_FALSE(section.title.empty());
    CHECK_FALSE(section.write(report).empty());
    all.emplace_back(section.name);
  }
  CHECK(std::set(all.begin(), all.end()).size() == all.size());
  const ReportPage page = monitor_page(report);
  CHECK(section_names(page) == all);
  CHECK(page.title == "live: Net, by hand");
  CHECK(page.subtitle == "30 steps, 3 measured, live.h5");
}

TEST_CASE("a monitored run's report says what happened, and where") {
  const MonitorReport report = monitored_report();
  const std::string text = markdown_page(monitor_page(report));
  CAPTURE(text);
  for (const char* part : {"1 alarm", "a logit of attention is 128, above 100",
                           "attention activation", "rank 5, micro-batch 6", "attention-logits",
                           "fc.weight", "30 steps, 1 skipped", "in 3 steps, every 10 steps"}) {
    CAPTURE(part);
    CHECK(has(text, part));
  }
  CHECK(place_name(report.site(kFcWeight)) == "fc.weight weight");
  CHECK(place_name(report.site(kFcOutput)) == "fc activation");
  CHECK(tensor_name(report.site(kFcGradWeight)) == "fc.weight");
}

TEST_CASE("a monitored run without alarms and without updates has no sections of them") {
  MonitorReport report = monitored_report();
  report.alarms.clear();
  report.updates.clear();
  const ReportPage page = monitor_page(report);
  CHECK(page.sections.size() == monitor_sections().size() - 2);
  for (const std::string& name : section_names(page)) {
    CHECK(name != "alarms");
    CHECK(name != "updates");
  }
  CHECK(has(markdown_page(page), "No alarm"));
}

TEST_CASE("a monitored run's report: a hostile name stays text") {
  const std::string name = "</script><img src=x onerror=\"alert('1')\">";
  MonitorReport report = monitored_report();
  report.data = report.formats[kLogits] = report.alarms[0].sentence = name;
  for (Site& site : report.sites.sites) site.node = std::string(kLiveNode) + name + ":activation";
  const std::string page = html_page(monitor_page(report), "charts");
  CHECK_FALSE(has(page, "<img"));
  CHECK_FALSE(has(page, "onerror=\""));
  CHECK(has(page, "&lt;img src=x"));
}

TEST_CASE("a monitored run's JSON has all digits, what is not known is null") {
  MonitorReport report = monitored_report();
  report.gradient_norm[4] = std::numeric_limits<double>::quiet_NaN();
  const auto json = nlohmann::json::parse(monitor_json(report));
  CHECK(json["format"] == "lockstep-monitor-report");
  CHECK(json["data"] == "live: Net, by hand");
  CHECK(json["every"] == 10);
  CHECK(json["measured"] == std::vector<int64_t>{0, 10, 20});
  CHECK(json["loss"].size() == 30);
  CHECK(json["loss"][29] == 2 - 29.0 / 64);
  CHECK(json["lr"][2] == 0.5 / 3);
  CHECK(json["gradient_norm"][3].is_number());
  CHECK(json["gradient_norm"][4].is_null());
  CHECK(json["skips"] == std::vector<int64_t>{7});
  CHECK(json["update_norm"].size() == 3);
  REQUIRE(json["alarms"].size() == 1);
  CHECK(json["alarms"][0]["rule"] == "attention-logits");
  CHECK(json["alarms"][0]["place"] == "attention activation");
  CHECK(json["alarms"][0]["rank"] == 5);
  CHECK(json["alarms"][0]["micro_batch"] == 6);
  CHECK(json["alarms"][0]["more"] == 0);
  REQUIRE(json["places"].size() == kMonitoredSites);
  CHECK(json["places"][kFcGradWeight]["name"] == "fc.weight grad_weight");
  CHECK(json["places"][kFcGradWeight]["largest"] == 0x1p-7);
  CHECK(json["places"][kFcWeight]["format"] == "fp32");
}

}  // namespace lockstep::testing
