// When is a lane fixed? The grades by hand, and a lane of mlp whose sums overflow.
#include "analysis/fix/fix.h"

#include <doctest/doctest.h>

#include <limits>

#include "tests/analysis/recorded_run.h"
#include "tests/support/refusal.h"

namespace lockstep {
namespace {

using testing::error_of;
using testing::has;
using testing::TempDir;

Trial trial(double gap, double fall, double chaos, Verdict verdict = Verdict::kUnclear) {
  Trial one;
  one.judgement.verdict = verdict;
  one.judgement.gap = gap;
  one.judgement.tail_loss = 1 + gap;
  one.judgement.chaos = chaos;
  one.judgement.batch_noise = 0.1;
  one.reference_fall = fall;
  one.steps = 60;
  return one;
}

TEST_CASE("the tolerance is 2 % of the fall, and never below what one ulp does") {
  CHECK(tolerance_of(trial(0, 2, 0.001)) == doctest::Approx(0.04));
  CHECK(tolerance_of(trial(0, 2, 0.07)) == doctest::Approx(0.07));
  CHECK(tolerance_of(trial(0, -1, 0.001)) == doctest::Approx(0.001));
}

TEST_CASE("a loss is FP32's within the tolerance, or within noise") {
  CHECK(grade_of_loss(trial(0.03, 2, 0)) == FixGrade::kTolerance);
  CHECK(grade_of_loss(trial(-5, 2, 0)) == FixGrade::kTolerance);
  CHECK(grade_of_loss(trial(0.05, 2, 0)) == FixGrade::kNo);
  CHECK(grade_of_loss(trial(0.05, 2, 0, Verdict::kFine)) == FixGrade::kNoise);
  CHECK(grade_of_loss(trial(0.05, 0, 0, Verdict::kTooShort)) == FixGrade::kNoise);
  CHECK(grade_of_loss(trial(0.15, 0, 0, Verdict::kTooShort)) == FixGrade::kNo);
  CHECK(grade_of_loss(trial(0, 2, 0, Verdict::kBroke)) == FixGrade::kNo);
  CHECK(grade_of_loss(trial(0, 2, 0, Verdict::kStalled)) == FixGrade::kNo);
  CHECK(grade_of_loss(trial(std::numeric_limits<double>::quiet_NaN(), 2, 0)) == FixGrade::kNo);
  Trial wrong = trial(0, 2, 0);
  wrong.equal = {.step = 0, .loss = 1.2, .of_reference = 1, .has_wrong_loss = true};
  CHECK(grade_of_loss(wrong) == FixGrade::kNo);
  Trial not_finite = trial(0, 2, 0);
  not_finite.equal.not_finite = 0;
  CHECK(grade_of_loss(not_finite) == FixGrade::kNo);
  Trial skips = trial(0, 2, 0);
  skips.late_skips = 5;
  CHECK(grade_of_loss(skips) == FixGrade::kNo);
}

TEST_CASE("a loss that differs at the end is judged at equal weights, above and below") {
  CHECK_FALSE(is_judged_at_every_step(trial(0.03, 2, 0)));
  CHECK(is_judged_at_every_step(trial(0.05, 2, 1)));
  CHECK(is_judged_at_every_step(trial(-0.05, 2, 1)));
  CHECK(is_judged_at_every_step(trial(0.001, -1, 1)));
  const Trial one = trial(0.5, 2, 1);
  EqualStep worst = {.step = 3, .loss = 1.1, .of_reference = 1};
  CHECK_FALSE(is_refuted(one, worst));
  worst.has_wrong_loss = true;
  CHECK(is_refuted(one, worst));
  CHECK_FALSE(is_refuted(trial(0.5, 20, 1), worst));  // 0.1 is tolerated of a fall by 20
  worst = {.step = 3, .loss = 1, .of_reference = 1, .not_finite = 2};
  CHECK(is_refuted(one, worst));
  worst = {.step = 3, .loss = 1, .of_reference = 1, .gradient_error = 0.6};
  CHECK(is_refuted(one, worst));
  CHECK_FALSE(is_refuted(trial(0.01, -1, 1), worst));  // noise near a minimum
  CHECK_FALSE(is_refuted(trial(-0.5, 2, 1), worst));
  worst.gradient_error = 0.4;
  CHECK_FALSE(is_refuted(one, worst));
}

TEST_CASE("a lane's text behaves as the lane does, and lanes without a policy are refused") {
  RunOptions options;
  options.policy_texts["mine.toml@hopper"] = "extends = 'half:1'\n";
  const FixLane file = fix_lane("mine.toml@hopper", options, nullptr);
  CHECK(file.toml == "extends = 'half:1'\n");
  CHECK(file.target == "hopper");
  CHECK(fix_lane("half", options, nullptr).toml == "extends = \"half:1\"\n");
  for (const std::string name : {"fp32", "fp64", "twin", "captured"}) {
    CHECK(has(error_of([&] { fix_lane(name, options, nullptr); }), "has no policy to change"));
  }
}

TEST_CASE("one layer's gradients are too large for any scale: the layer in fp32 ends it") {
  const TempDir dir;
  RunOptions options = testing::small_run();
  options.steps = 36;
  options.held_out = false;
  options.policy_texts["bad.toml"] =
      "extends = 'torch-autocast-fp16:2.12'\n[[rule]]\nlayer = 'fc2'\nloss_scale = 16777216.0\n";
  const std::atomic<bool> stop = false;
  TrialRuns runs(options, dir.file("trials"), "test", stop, nullptr);
  const Fix fix = find_fix(runs, fix_lane("bad.toml", options, nullptr), SearchBudget{24, {}});
  REQUIRE(fix.answer == Fix::Answer::kFixed);
  CHECK(has(fix.before_sentence, "the loss scale fell"));
  REQUIRE(fix.fix().edits.size() == 1);
  CHECK(fix.fix().edits[0].words == "fc2 in fp32");
  CHECK(fix.fix().gone);
  CHECK(fix.rounds[0].untested == std::vector<std::string>{"gradient clipping inside the model"});
  // Without a budget nothing is tried.
  const Fix none = find_fix(runs, fix_lane("bad.toml", options, nullptr), SearchBudget{0, {}});
  CHECK(none.answer == Fix::Answer::kNothingHelped);
  CHECK(none.out_of_budget);
}

}  // namespace
}  // namespace lockstep
