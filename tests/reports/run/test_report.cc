// The whole text report of a run written by hand, against a golden file; the names it must show.
// LOCKSTEP_REWRITE_GOLDEN=1 rewrites the golden file.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "reports/run/report_json.h"
#include "reports/run/section.h"
#include "reports/writers/text_writer.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "tests/reports/run/hand_made_report.h"
#include "tests/support/folders.h"

namespace lockstep {
namespace {

using testing::hand_made;
using testing::lane;

TEST_CASE("the report of a hand-made run is the golden one") {
  const std::string golden = std::string(testing::kSourceFolder) + "/tests/golden/report.txt";
  const std::string text = report_text(hand_made());
  if (std::getenv("LOCKSTEP_REWRITE_GOLDEN") != nullptr) write_text_file_atomically(golden, text);
  CHECK(text == read_text_file(golden));
}

TEST_CASE("what a short capture can show is said once, and only of captures") {
  const std::string wanted =
      "8 recorded steps show overflow, underflow and lost updates, not whether training converges: "
      "record 100 steps, or repeat these.";
  const auto count = [&](const Report& report) {
    std::string text = report_text(report);
    std::replace(text.begin(), text.end(), '\n', ' ');
    int found = 0;
    for (size_t at = text.find(wanted); at != std::string::npos; at = text.find(wanted, at + 1)) {
      ++found;
    }
    return found;
  };
  Report report = hand_made();
  report.steps = 8;
  CHECK(count(report) == 0);
  report.lanes.push_back(lane("captured", 0.5, 0.97));
  report.captured = 4;
  for (LaneReport& one : report.lanes) one.judgement.verdict = Verdict::kTooShort;
  CHECK(count(report) == 1);
  report.lanes[3].judgement.verdict = Verdict::kBroke;
  CHECK(count(report) == 1);
  report.steps = 100;
  CHECK(count(report) == 0);
}

TEST_CASE("the first screen: worst lane first, with step, place, value, limit and what to try") {
  std::string text = report_text(hand_made(), /*summary_only=*/true);
  std::replace(text.begin(), text.end(), '\n', ' ');  // line breaks do not matter here
  for (const std::string part :
       {"pure-fp16 broke at step 39. fc1 linear (model.py:41): its result reaches 1.1e5, fp16 ends "
        "at 65504. Try (untested): this op in fp32 or bf16; smaller values before it.",
        "torch-autocast-fp16 is fine: loss 0.505, 0.005 above the reference's (noise 0.03); 0.20 "
        "points fewer held-out answers right (noise 1.6); step 3 skipped "
        "(loss scale 2^16 to 2^15)."}) {
    CAPTURE(part);
    CHECK(text.find(part) != std::string::npos);
  }
  CHECK(text.find("pure-fp16 broke") < text.find("torch-autocast-fp16 is fine"));
  CHECK(text.find("Loss scale") == std::string::npos);  // the summary leaves it out
}

TEST_CASE("no lane takes more than three lines of the first screen") {
  Report report = hand_made();
  report.sites.sites[0].layer = std::string(90, 'a') + "." + std::string(90, 'b');
  report.lanes[3].has_scaler = true;  // one more sentence
  const std::string text = report_text(report, true);
  const size_t begin = text.find("pure-fp16 broke"), end = text.find("\n\n", begin);
  const std::string lane = text.substr(begin, end - begin);
  CHECK(std::ranges::count(lane, '\n') <= 2);
  CHECK(lane.find("1.1e5") != std::string::npos);
}

TEST_CASE("a lane that is only worse has its gravest finding named as the likely cause") {
  Report report = hand_made();
  LaneReport& lane = report.lanes[2];
  lane.judgement.verdict = Verdict::kWorse;
  lane.findings = report.lanes[3].findings;
  std::string text = report_text(report);
  std::replace(text.begin(), text.end(), '\n', ' ');
  CHECK(text.find("torch-autocast-fp16 is worse: loss 0.505") != std::string::npos);
  CHECK(text.find("Likely cause: fc1 linear") != std::string::npos);
  CHECK(text.find(
            "- underflow, step 0..38. fc1 linear_backward_weight: its gradient loses 42% of its "
            "energy to underflow in fp16.") != std::string::npos);
}

TEST_CASE("outcomes that are not judged: the reason, and the run that would have them") {
  const auto screen = [](const Report& report) {
    return report_text(report, /*summary_only=*/true);
  };
  Report report = hand_made();
  report.options.lanes = {"fp32", "pure-fp16", "twin"};
  for (LaneReport& one : report.lanes) one.judgement.verdict = Verdict::kTooShort;
  const std::string as_it_was = "  lockstep replay mlp --lanes fp32,pure-fp16 --steps ";
  CHECK(screen(report).find(as_it_was + "400 -o run-judged.h5") != std::string::npos);
  const std::string beside_advice = report_text(testing::advised(report), /*summary_only=*/true);
  CHECK(beside_advice.find("Outcomes are not judged: ") != std::string::npos);
  CHECK(beside_advice.find("run-judged.h5") == std::string::npos);
  report.options.mode = LaneMode::kSynced;
  CHECK(screen(report).find(as_it_was + "100 -o run-judged.h5") != std::string::npos);
  report.options.mode = LaneMode::kFree;
  const std::string resumed = "  lockstep replay --resume run.h5";
  report.options.steps = 200;
  CHECK(screen(report).find(resumed) != std::string::npos);
  report.options.steps = 100;
  report.unfinished_seeds = {2};
  CHECK(screen(report).find(resumed) != std::string::npos);
  report.unfinished_seeds.clear();

  report.options.capture_hash = "0123";
  report.captured = 4;
  report.lanes.push_back(lane("captured", 0.5, 0.97));
  report.steps = report.options.steps = 8;
  CHECK(screen(report).find(as_it_was + "100 --cycle -o run-judged.h5") != std::string::npos);
  report.options.mode = LaneMode::kSynced;
  CHECK(screen(report).find(as_it_was + "100 --cycle -o run-judged.h5") != std::string::npos);
  report.options.mode = LaneMode::kFree;
  report.captured = -1;  // a run that repeats its steps has no such lane
  report.lanes.pop_back();
  report.options.cycle = true;
  CHECK(screen(report).find(as_it_was + "32 --cycle -o run-judged.h5") != std::string::npos);
  const std::string command_line = report.command_line;
  report.command_line = "lockstep recommend mine.lscap.h5";
  CHECK(screen(report).find("-judged.h5") == std::string::npos);
  report.command_line = command_line;
  report.lanes.front().judgement.tail_loss = testing::kNan;
  CHECK(screen(report).find("the reference's own loss is not finite.\n") != std::string::npos);
  CHECK(screen(report).find("run-judged.h5") == std::string::npos);
  CHECK(screen(report).find("--fix") == std::string::npos);
}

TEST_CASE("PyTorch's own run that broke: the lane that shows why") {
  Report report = hand_made();
  report.captured = 4;
  report.lanes.push_back(lane("captured", 0.5, 0.97));
  report.lanes.back().judgement = report.lanes[3].judgement;
  report.lanes.back().nonfinite_loss_at = 40;
  report.lanes[3].beside_captured.emplace().losses.emplace();
  const auto text = [&] {
    std::string words = report_text(report, /*summary_only=*/true);
    std::replace(words.begin(), words.end(), '\n', ' ');
    return words;
  };
  CHECK(text().find("captured broke at step 40. This is PyTorch's own run, whose sites were not "
                    "measured: pure-fp16, which does the same, shows the cause.") !=
        std::string::npos);
  report.lanes[3].beside_captured->losses.reset();  // another policy
  CHECK(text().find("measured: pure-fp16 may show the cause.") != std::string::npos);
  report.lanes[3].findings.clear();
  CHECK(text().find("measured: replay its policy as a lane") != std::string::npos);
}

TEST_CASE("layers that only receive NaN are counted, not listed") {
  Report report = hand_made();
  std::vector<LayerHealth>& health = report.lanes[3].health;
  const LayerHealth receiver{.layer = "fc1",
                             .role = Role::kGradWeight,
                             .site = 1,
                             .worst = {.steps = 40, .count = 4000, .nonzero = 4000, .nan = 4},
                             .measured_sites = 1};
  const auto counts = [&] {
    std::string text = report_text(report);
    std::replace(text.begin(), text.end(), '\n', ' ');
    return text.substr(text.find("pure-fp16, before step 40"), 200);
  };
  health.insert(health.end(), 3, receiver);
  CHECK(counts().find("there on): 5 (layer, role) pairs lost values or precision, 0 did not") !=
        std::string::npos);
  health.push_back(receiver);
  CHECK(counts().find("2 (layer, role) pairs lost values or precision, 4 only received NaN, 0 did "
                      "not") != std::string::npos);
  report.lanes[3].findings[0].site = 1;  // here they begin
  CHECK(counts().find("6 (layer, role) pairs lost") != std::string::npos);
  report.lanes[3].findings.clear();  // nothing says where they begin
  CHECK(counts().find("6 (layer, role) pairs lost") != std::string::npos);
}

TEST_CASE("several seeds: in how many a lane broke, and how many would decide") {
  Report report = hand_made();
  report.seeds = {7, 8, 9};
  report.unfinished_seeds = {10};
  for (LaneReport& lane : report.lanes) {
    lane.judgement.seeds = 3;
    lane.judgement.seed_bound = 0.05;
    lane.findings_seed = 7;
  }
  report.lanes[2].judgement.verdict = Verdict::kUnclear;
  report.lanes[2].judgement.seeds_to_decide = 5;
  report.lanes[3].judgement.broke_in = 2;
  report.lanes[3].findings_seed = 8;
  std::string text = report_text(report, true);
  std::replace(text.begin(), text.end(), '\n', ' ');
  for (size_t at = 0; (at = text.find("  ", at)) != std::string::npos;) text.erase(at, 1);
  for (const std::string part :
       {"pure-fp16 broke in 2 of 3 seeds, at step 39 of seed 8. fc1 linear",
        "torch-autocast-fp16 is unclear: loss 0.505, 0.005 above the reference's (noise 0.05, 3 "
        "seeds);",
        "about 5 seeds would decide", "Seed 10 is unfinished or missing and left out.",
        "of pure-fp16 seed 8 ("}) {
    CAPTURE(part);
    CHECK(text.find(part) != std::string::npos);
  }
  const auto json = nlohmann::json::parse(report_json(report));
  CHECK(json["seeds"] == std::vector<uint64_t>{7, 8, 9});
  CHECK(json["lanes"][2]["seeds_to_decide"] == 5);
  CHECK(json["lanes"][2]["seed_bound"] == 0.05);
  CHECK(json["lanes"][3]["broke_in"] == 2);
  CHECK(json["lanes"][3]["findings_seed"] == 8);
  report.lanes[2].judgement.seeds_to_decide = kMostDecidingSeeds + 1;
  text = report_text(report, true);
  std::replace(text.begin(), text.end(), '\n', ' ');
  CHECK(text.find("more than 100 seeds would be needed to decide") != std::string::npos);
}

TEST_CASE("skipped steps are named if there are at most three; twins are no rows") {
  Report report = hand_made();
  CHECK(report_text(report, true).find("; step 3 skipped") != std::string::npos);
  report.lanes[2].skips = {0, 1, 50};
  std::string text = report_text(report, true);
  std::replace(text.begin(), text.end(), '\n', ' ');
  CHECK(text.find("; steps 0, 1 and 50 skipped") != std::string::npos);
  report.lanes[2].skips = {0, 1, 2, 3};
  CHECK(report_text(report, true).find(" skipped.") == std::string::npos);
  CHECK(report_text(report).find("\n  twin ") == std::string::npos);
  CHECK(text.find("twin (one ulp moved, measures chaos): gap +0.0010") != std::string::npos);
}

TEST_CASE("JSON: the outcome and the findings of every lane") {
  const auto json = nlohmann::json::parse(report_json(hand_made()));
  CHECK(json["format"] == "lockstep-report");
  const auto& lane = json["lanes"][3];
  CHECK(lane["outcome"] == "broke");
  CHECK(lane["loss"].is_null());
  CHECK(lane["findings"][0]["kind"] == "overflow");
  CHECK(lane["findings"][0]["value"] == 112345);
  CHECK(lane["findings"][0]["site"]["layer"] == "fc1");
  CHECK(lane["findings"][0]["consequences"][0]["role"] == "grad_weight");
  CHECK(lane["findings"][1]["pass"] == "backward");
}

TEST_CASE("no line is wider than the page, however long the command and the names are") {
  Report report = hand_made();
  report.command_line = "lockstep replay lenet --lanes 'a path with spaces/policy.toml' " +
                        std::string(60, 'x') + " --steps 400 " + std::string(40, 'y') + " -o r.h5";
  report.lanes[3].info.name = std::string(120, 'n') + ".toml";
  const std::string text = report_text(report);
  for (const std::string& line : split(text, '\n')) {
    CAPTURE(line);
    const bool is_cut =
        line.find(report.lanes[3].info.name) == std::string::npos;  // not in commands
    if (is_cut && (line.find("nnnn") == std::string::npos || line.starts_with("  "))) {
      CHECK(display_width(line) <= kTextWidth);
    }
  }
  CHECK(text.find("'a path with spaces/policy.toml' \\\n") != std::string::npos);
}

TEST_CASE("a skipped step is shown with its scale and the site that caused it") {
  const std::string text = report_text(hand_made());
  CHECK(text.find("skipped   2^16  2^15  fc1 linear_backward_weight grad_weight output") !=
        std::string::npos);
}

TEST_CASE("scalers of several losses are shown separately") {
  Report report = hand_made();
  LaneReport& lane = report.lanes[2];
  lane.skips = {3, 7};
  lane.info.scaler_losses = {"box", "class"};
  lane.scalers[0].loss = "box";
  lane.scalers.push_back({.loss = "class",
                          .overflows = {{.step = 7, .scale = 4096, .scale_after = 2048}},
                          .growths = {{.step = 2, .scale = 2048, .scale_after = 4096}},
                          .final_scale = 2048});
  const std::string text = report_text(report);
  for (const std::string part :
       {"torch-autocast-fp16: 2 scalers, one per loss; 2 of 100 steps skipped because of at least "
        "one.",
        "torch-autocast-fp16, loss box: scale 2^15 at the end, caused the skip of 1 of 100 steps",
        "torch-autocast-fp16, loss class: scale 2^11 at the end, caused the skip of 1 of 100 "
        "steps, grew",
        "skipped   2^12  2^11  -", "grew      2^11  2^12", "2^15, 2^11"}) {
    CAPTURE(part);
    CHECK(text.find(part) != std::string::npos);
  }
}

TEST_CASE(
    "hardware compared with its model: same bits, first differences with a reason, and broken "
    "lanes") {
  Report report = hand_made();
  HardwarePair pair;
  pair.model_lane = 2;
  const auto text_of = [&] {
    report.lanes[3].beside_model = pair;
    std::string text = report_text(report);
    std::ranges::replace(text, '\n', ' ');
    return text;
  };
  const auto says = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  CHECK(says(text_of(), "have no measured tensor in common"));
  pair.tensors = pair.same = 6;
  CHECK(says(text_of(), "in all 6 tensors of 100 steps."));
  pair.same = 4, pair.first_step = 2, pair.loss_gap = 1.5e-6;
  pair.one_chain = {5, 4}, pair.in_parts = {2, 0};
  pair.first.resize(4);
  for (FirstDifference& place : pair.first) place.site = 1;
  pair.first[1].products = {{.m = 2, .n = 3, .k = 4, .algorithm = 66, .most_parts = 7},
                            {.m = 2, .n = 3, .k = 5}};
  pair.first[2].products = {{.m = 8, .n = 8, .k = 8, .batch = 3}};
  pair.first[3].products = pair.first[2].products;
  pair.first[3].is_rounded = true;
  pair.gaps = {{.site = 1, .tensors = 3, .same = 1, .least = 1e-7, .most = 3e-7}};
  std::string text = text_of();
  for (const char* part :
       {"4 of 6 tensors", "is at most 1.5e-06.", "4 of 5 results", "0 of 2 results",
        "first differences, step 2", "no sum on the device", "2x3x4 and 1 more",
        "split-K, at most 7 parts", "8x8x8, batch 3", "no split reported", "rounded by the library",
        "largest distances", "1 of 3", "3e-07"}) {
    CAPTURE(part);
    CHECK(says(text, part));
  }
  pair.first.clear(), pair.follows_unmeasured = true, pair.one_broke_at = 9;
  text = text_of();
  CHECK(says(text, "where they first differed is not known"));
  CHECK(says(text, "In step 9 the loss of one of them alone is not finite"));
  CHECK_FALSE(says(text, "first differences, step"));
}

TEST_CASE("every section has its own name and says something about a full run") {
  Report report = hand_made();
  testing::add_pictures(report);
  report.options.capture_hash = "0123";  // two sections are for captures only
  CapturedComparison beside;
  beside.first = beside.last = {.step = 0, .captured = 2, .lane = 2, .furthest = "fc.weight"};
  for (LaneReport& lane : report.lanes) lane.beside_captured = beside;
  report.lanes[3].beside_model = HardwarePair();
  report.lanes[3].beside_model->model_lane = 2;
  report.lanes[3].watched = {testing::watched_log_probs()};
  PartEffect& part = report.lanes[2].parts.emplace_back();
  part.name = "blocks.0", part.batches = 1;
  for (const Section& a : sections()) {
    CAPTURE(a.name);
    CHECK_FALSE(a.write(testing::advised(report)).empty());
    for (const Section& b : sections()) CHECK((&a == &b || a.name != b.name));
  }
}

}  // namespace
}  // namespace lockstep
