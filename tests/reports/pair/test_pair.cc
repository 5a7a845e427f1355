// Two reports written by hand: a lane that broke and was fixed; runs of different graphs.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "reports/pair/change_sentence.h"
#include "reports/pair/pair_json.h"
#include "reports/pair/pair_page.h"
#include "reports/writers/csv_writer.h"
#include "reports/writers/html_page.h"
#include "reports/writers/markdown_page.h"
#include "tests/reports/golden_file.h"
#include "tests/reports/run/hand_made_report.h"

namespace lockstep {
namespace {

using testing::hand_made;

// The hand-made run before; after it, pure-fp16 trains: its overflow is gone, its underflow stays.
ReportPair fixed_pair() {
  Report before = hand_made(), after = hand_made();
  before.path = "runs/before.h5";
  after.path = "runs/after.h5";
  after.options.batch = 128;
  before.lanes[3].info.policy_text = "name = \"pure-fp16\"\n";
  LaneReport& lane = after.lanes[3];
  lane = testing::lane("pure-fp16", 0.51, 0.96);
  lane.info.policy_text = "name = \"pure-fp16\"\n[[rule]]\nlayer = \"fc1\"\n";
  lane.findings = {before.lanes[3].findings[1]};
  lane.health = {before.lanes[3].health[0]};
  lane.health[0].worst.to_infinity = 0;
  return compare_reports(std::move(before), std::move(after));
}

std::string one_line(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return text;
}

TEST_CASE("the text of two hand-made runs is the golden one") {
  const std::string text = page_text(pair_page(fixed_pair()));
  CHECK(text == testing::golden_text("report_pair.txt", text));
}

TEST_CASE("the first sentence says what changed") {
  const ReportPair pair = fixed_pair();
  const std::string text = one_line(page_text(pair_page(pair)));
  CHECK(
      text.starts_with("What changed ============ pure-fp16 broke at step 39 in before.h5; in "
                       "after.h5 it trains as fp32 does."));
  CHECK(text.find("torch-autocast-fp16 trains as fp32 does in both runs.") != std::string::npos);
  CHECK(text.find("  gone     pure-fp16  overflow") < text.find("  in both  pure-fp16  underflow"));
  CHECK(text.find("  in both  pure-fp16  underflow") < text.find("Training loss of both"));
  CHECK(text.find("  batch                64         128") != std::string::npos);
  const ReportPair back = compare_reports(pair.after, pair.before);
  CHECK(one_line(page_text(pair_page(back)))
            .starts_with("What changed ============ pure-fp16 trains as fp32 does in after.h5; in "
                         "before.h5 it broke at step 39."));
}

TEST_CASE("a lane that is not judged has the same reason as in its run's own report") {
  const ReportPair pair = fixed_pair();
  Report after = pair.after;
  after.lanes[3].judgement.verdict = Verdict::kTooShort;
  const auto sentence = [&] {
    const ReportPair changed = compare_reports(pair.before, after);
    for (const LaneComparison& lanes : changed.changes.lanes) {
      if (changed.lane_name(lanes) == "pure-fp16") return change_sentence(changed, lanes);
    }
    return std::string();
  };
  CHECK(sentence().ends_with("(the reference's loss fell by no more than its batch noise)."));
  after.lanes[0].judgement.tail_loss = std::nan("");
  CHECK(sentence().ends_with("it is not judged (the reference's own loss is not finite)."));
}

TEST_CASE("a lane of another name takes the place of the one that is gone") {
  ReportPair pair = fixed_pair();
  Report after = pair.after;
  after.lanes[3].info.name = "fixed.toml";
  pair = compare_reports(pair.before, after);
  CHECK(change_sentence(pair, pair.changes.lanes.front()) ==
        "pure-fp16 broke at step 39 in before.h5; in after.h5 fixed.toml, which takes its place, "
        "trains as fp32 does.");
  after.lanes[2].info.name = "other";
  pair = compare_reports(pair.before, after);
  const std::string text = one_line(page_text(pair_page(pair)));
  CHECK(text.find("pure-fp16 is in before.h5 only, where it broke at step 39.") !=
        std::string::npos);
  CHECK(text.find("fixed.toml is in after.h5 only, where it trains as fp32 does.") !=
        std::string::npos);
}

TEST_CASE("runs of different graphs still give both verdicts and what differs") {
  ReportPair pair = fixed_pair();
  Report after = pair.after;
  after.sites.sites[0].layer = "conv1";
  after.options.model = "lenet";
  pair = compare_reports(pair.before, after);
  CHECK_FALSE(pair.changes.same_graph());
  const std::string text = one_line(page_text(pair_page(pair)));
  CHECK(text.find("The step graphs differ (2 sites of mlp in before.h5, 2 of lenet in after.h5)") !=
        std::string::npos);
  for (const std::string name : {"What before.h5 says itself:", "What after.h5 says itself:"}) {
    CHECK(text.find(name) != std::string::npos);
  }
  CHECK(text.find("Layers that lose more") == std::string::npos);
}

TEST_CASE("every writer takes two runs; a hostile name stays text") {
  ReportPair pair = fixed_pair();
  const std::string name = "</script><img src=x onerror=alert(1)>";
  Report after = pair.after;
  after.lanes[3].info.name = name;
  const ReportPage page = pair_page(compare_reports(pair.before, after));
  CHECK(markdown_page(page).find("<img") == std::string::npos);
  CHECK(markdown_page(page).find("### What changed") != std::string::npos);
  after.path = "runs/" + name;  // Markdown shows it in a code span
  CHECK(html_page(pair_page(compare_reports(pair.before, after))).find("<img") ==
        std::string::npos);
  const std::vector<CsvTable> tables = csv_tables(page.sections);
  const auto losses = std::ranges::find(tables, "losses-curves", &CsvTable::name);
  REQUIRE(losses != tables.end());
  CHECK(std::ranges::count(losses->text, '\n') == 101);
}

TEST_CASE("JSON of two runs: both reports, what changed") {
  ReportPair pair = fixed_pair();
  const auto json = nlohmann::json::parse(pair_json(pair));
  CHECK(json["format"] == "lockstep-report-pair");
  const auto& lane = json["lanes"][0];
  CHECK(lane["change"] == "better");
  CHECK(lane["findings_gone"][0]["kind"] == "overflow");
  CHECK(lane["findings_in_both"][0]["kind"] == "underflow");
  CHECK(lane["findings_new"].empty());
  CHECK(json["settings"][0]["after"] == "128");
  CHECK(json["after"]["lanes"][3]["outcome"] == "fine");
}

}  // namespace
}  // namespace lockstep
