// The report as JSON: golden files of a plain report and of one that has every key.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "reports/run/report_json.h"
#include "tests/reports/golden_file.h"
#include "tests/reports/run/hand_made_report.h"

namespace lockstep {
namespace {

using testing::hand_made;

TEST_CASE("the JSON of the hand-made report is the golden one") {
  const std::string json = report_json(hand_made());
  CHECK(json == testing::golden_text("report.json", json));
}

// A report that has everything: of a capture, with every kind of place.
Report full_report() {
  Report report = hand_made();
  testing::add_pictures(report);
  RangeTable& ranges = report.ranges[0];
  ranges.layers[0].unscaled_margin = 3;
  ranges.layers[1].reason = "relu reaches 2^18";
  report.options.capture_hash = "0123";
  report.verification = Verification();
  report.verification->gates = {
      {.name = "V1", .subject = "forward", .status = "PASS", .figure = "1e-7", .floor = {}}};
  LaneReport& lane = report.lanes[3];
  lane.has_scaler = true;
  lane.scalers = {report.lanes[2].scalers[0]};
  lane.scalers[0].loss = "box";
  lane.device = {
      .products = 3, .bytes_up = 12, .bytes_down = 4, .kinds = {{.m = 1, .n = 1, .k = 1}}};
  HardwarePair beside_model;
  beside_model.model_lane = 2;
  beside_model.first.emplace_back();
  beside_model.first[0].site = 1;
  beside_model.first[0].products = {{.m = 1, .n = 1, .k = 1}};
  beside_model.gaps = {{.site = 1, .tensors = 3, .same = 2, .least = 0, .most = 1e-7}};
  lane.beside_model = beside_model;
  lane.scalers[0].growths = {{.step = 1, .scale = 1, .scale_after = 2}};
  lane.evaluations = {{.steps_done = 100, .loss = 1, .accuracy = 0.5, .example_count = 10}};
  lane.sums.resize(1);
  lane.sums[0].samples = 64;
  lane.findings[0].cause = 1;
  lane.findings[0].outlier_step = 3;
  lane.findings[0].spoilt = 1;
  CapturedComparison beside;
  beside.losses = LossComparison();
  beside.disagreement = ScalerDisagreement{.step = 3, .captured = {}, .lane = {}};
  beside.first = {.step = 0, .captured = 2, .lane = 2, .furthest = "fc.weight"};
  lane.beside_captured = beside;
  lane.watched = {testing::watched_log_probs()};
  return report;
}

TEST_CASE("the JSON of a report that has every key is the golden one") {
  const std::string json = report_json(full_report());
  CHECK(json == testing::golden_text("report_full.json", json));
}

TEST_CASE("JSON: losses, scales and skips have all digits, what is not finite is null") {
  const auto json = nlohmann::json::parse(report_json(hand_made()));
  const auto& lane = json["lanes"][3];
  CHECK(lane["losses"].size() == 100);
  CHECK(lane["losses"][39].is_number());
  CHECK(lane["losses"][40].is_null());
  const std::string sentence = lane["sentence"];
  CHECK(sentence.starts_with("pure-fp16 broke at step 39. fc1 linear (model.py:41): "));
  CHECK(lane["layers"][1]["to_zero"] == 1684);
  CHECK(lane["layers"][1]["site"]["op"] == "linear_backward_weight");
  const auto& scaler = json["lanes"][2]["scalers"][0];
  CHECK(scaler["scales"][3] == 65536);
  CHECK(scaler["skips"][0]["step"] == 3);
  CHECK(scaler["skips"][0]["culprit"]["id"] == 1);
  CHECK(json["lanes"][1]["kind"] == "twin");
  CHECK_FALSE(json["lanes"][1].contains("sentence"));
}

}  // namespace
}  // namespace lockstep
