// Distances to the captured run: bounds of the losses by hand, scaler and gradients from a run file
// with a lane in place of PyTorch's.
#include "analysis/faithful/captured_run.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "src/graph/json.h"
#include "src/train/lane/captured_lane.h"
#include "tests/analysis/recorded_run.h"

namespace lockstep {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

using testing::Described;
using testing::record;
using testing::small_run;
using testing::TempDir;

TEST_CASE("a norm over all parameters is NaN where one is, though not where none was captured") {
  const std::vector<Parameter> names = {{.name = "a", .type = {}, .layer = ""},
                                        {.name = "b", .type = {}, .layer = ""}};
  const std::array captured = {3.0, 4.0}, broken = {kNaN, kNaN}, without = {kNaN, 4.0};
  const NormComparison norms = compare_norms(2, captured, broken, names);
  CHECK(norms.captured == 5);
  CHECK(std::isnan(norms.lane));
  CHECK(compare_norms(2, without, broken, names).captured == 4);
  CHECK(compare_norms(2, without, captured, names).lane == 4);
}

TEST_CASE("the floor bounds the losses if nothing else is known") {
  const std::array captured = {1.0, 1.0}, near = {1.0009, 0.9995}, far = {1.0009, 1.002};
  const LossComparison kept = compare_losses(captured, near, captured, {}, /*is_low=*/false);
  CHECK(kept.departure == -1);
  CHECK(kept.compared_steps == 2);
  CHECK(kept.step == 0);  // the nearest to its bound
  CHECK(kept.bound == kLossFloor);
  const LossComparison departed = compare_losses(captured, far, captured, {}, false);
  CHECK(departed.departure == 1);
  CHECK(departed.lane == 1.002);
}

TEST_CASE("the twin's largest distance so far raises the bound, in later steps too") {
  const std::array captured = {1.0, 1.0, 1.0}, fp32 = captured, twin = {1.0, 1.01, 1.0};
  const std::array lane = {1.0, 1.0, 1.029};
  const LossComparison found = compare_losses(captured, lane, fp32, twin, false);
  CHECK(found.departure == -1);
  CHECK(found.bound == doctest::Approx(kTwinTimes * 0.01).epsilon(1e-12));
  const std::array early = {1.029, 1.0, 1.0};
  CHECK(compare_losses(captured, early, fp32, twin, false).departure == 0);
}

TEST_CASE("under autocast the distance of the captured run to FP32 counts by half") {
  const std::array captured = {1.0}, fp32 = {1.1}, lane = {1.049};
  CHECK(compare_losses(captured, lane, fp32, {}, /*is_low=*/true).departure == -1);
  CHECK(compare_losses(captured, lane, fp32, {}, /*is_low=*/false).departure == 0);
}

TEST_CASE("steps without a captured loss are left out, a lane without one departs") {
  const std::array captured = {kNaN, 1.0}, lane = {5.0, kNaN};
  const LossComparison found = compare_losses(captured, lane, captured, {}, false);
  CHECK(found.compared_steps == 1);
  CHECK(found.departure == 1);
}

// fp32 and pure-fp16 of a real run, the latter in place of PyTorch's recorded lane: losses, scaler
// and gradient norms of the steps are set by hand.
struct CapturedFile {
  TempDir dir;
  RunFile run;

  static RunFile make(const TempDir& dir, const std::function<void(StepRecord&)>& steps) {
    RunOptions options = small_run();
    options.lanes = {"fp32", "pure-fp16"};
    return record(dir.file("run.h5"), options,
                  {.description =
                       [](Described& d) {
                         d.run.lanes[1].policy.text +=
                             "\n" + std::string(kCapturedEqual) + "fp32\n";
                         d.options.capture_hash = "0123";
                       },
                   .step = steps});
  }
  explicit CapturedFile(const std::function<void(StepRecord&)>& steps) : run(make(dir, steps)) {}
};

// Every parameter has the norm 1 in both lanes, except those that a test sets.
void equal_norms(StepRecord& step, size_t parameters) {
  for (LaneStep& lane : step.lanes) lane.gradient_norms.assign(parameters, 1);
  step.lanes[1].loss = step.lanes[0].loss;
  step.lanes[1].scalers = step.lanes[0].scalers;
}

TEST_CASE("scaler, losses and gradient norms against the captured lane") {
  const CapturedFile probe([](StepRecord&) {});
  const size_t parameters = graph_from_json(probe.run.graph_json()).parameters.size();
  const CapturedFile equal([&](StepRecord& step) { equal_norms(step, parameters); });
  const CapturedComparison same = compare_with_captured(equal.run, 0, 1);
  CHECK_FALSE(same.disagreement.has_value());
  CHECK(same.compared_steps == 3);
  REQUIRE(same.losses.has_value());
  CHECK(same.losses->departure == -1);
  CHECK(same.first.step == 0);
  CHECK(same.last.step == 2);
  CHECK(same.last.furthest_ratio == 1);
  CHECK(same.first.captured == doctest::Approx(std::sqrt(static_cast<double>(parameters))));

  const CapturedFile other([&](StepRecord& step) {
    equal_norms(step, parameters);
    if (step.step == 0) step.lanes[1].gradient_norms.assign(parameters, kNaN);  // not recorded
    if (step.step == 1) step.lanes[1].scalers[0].found_inf = true;
    if (step.step == 2) {
      step.lanes[0].gradient_norms[1] = 4;
      step.lanes[1].gradient_norms[0] = kSmallNorm / 2;  // too small to be compared
      step.lanes[1].loss += 1;
    }
  });
  const CapturedComparison apart = compare_with_captured(other.run, 0, 1);
  REQUIRE(apart.disagreement.has_value());
  CHECK(apart.disagreement->step == 1);
  CHECK(apart.disagreement->captured.found_inf);
  CHECK_FALSE(apart.disagreement->lane.found_inf);
  CHECK(apart.losses->departure == 2);
  CHECK(apart.first.step == 1);
  CHECK(apart.last.furthest == graph_from_json(other.run.graph_json()).parameters[1].name);
  CHECK(apart.last.furthest_ratio == 4);
}

TEST_CASE("losses are compared only with the lane that does what PyTorch did") {
  const CapturedFile file([](StepRecord&) {});
  CHECK(compare_with_captured(file.run, 0, 1).losses.has_value());
  CHECK_FALSE(compare_with_captured(file.run, 1, 1).losses.has_value());
}

}  // namespace
}  // namespace lockstep
