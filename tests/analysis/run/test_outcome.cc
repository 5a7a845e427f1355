// Verdicts on loss curves written by hand.
#include "analysis/run/outcome.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace lockstep {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// So many answers that a point of them exceeds their noise.
constexpr int64_t kAnswers = 1000000, kCorrect = 950000, kPoint = kAnswers / kAnswersPerPoint;

// From 2.0 down to `end`, constant over the tail.
std::vector<double> curve(double end) {
  std::vector<double> loss(100, end);
  loss[0] = 2.0;
  return loss;
}

JudgeInput input(const std::vector<double>& lane, const std::vector<double>& reference) {
  return {.lane = lane,
          .reference = reference,
          .twin = {},
          .held_out = {.correct = kCorrect, .answers = kAnswers},
          .reference_held_out = {.correct = kCorrect, .answers = kAnswers},
          .twin_held_out = {}};
}

TEST_CASE("the tail is a tenth of the run, at least ten steps") {
  CHECK(tail_of(std::vector<double>(200)).size() == 20);
  CHECK(tail_of(std::vector<double>(50)).size() == 10);
  CHECK(tail_of(std::vector<double>(3)).size() == 3);
  CHECK(tail_mean(std::vector<double>{1, 2, 3}) == 2);
  CHECK(std::isnan(tail_mean({})));
}

TEST_CASE("the margin is a share of the reference's decrease, not below the twin's gap") {
  const auto reference = curve(1.0);
  CHECK(loss_margin(reference, {}) == kLossMarginShare * 1.0);
  CHECK(loss_margin(reference, curve(1.5)) == 0.5);
  CHECK(loss_margin(curve(2.5), {}) < 0);  // the reference did not learn
}

TEST_CASE("verdicts") {
  const auto reference = curve(1.0);
  const double margin = kLossMarginShare;
  CHECK(judge(input(reference, reference)).verdict == Verdict::kFine);
  CHECK(judge(input(curve(1 + 0.9 * margin), reference)).verdict == Verdict::kFine);
  CHECK(judge(input(curve(1 + 1.1 * margin), reference)).verdict == Verdict::kWorse);
  CHECK(judge(input(curve(0.5), reference)).verdict == Verdict::kFine);
  CHECK(judge(input(curve(kNan), reference)).verdict == Verdict::kBroke);
  CHECK(judge(input(reference, curve(2.5))).verdict == Verdict::kUnjudged);
  JudgeInput died = input(reference, reference);
  died.died_at = 12;
  CHECK(judge(died).verdict == Verdict::kBroke);
  JudgeInput synced = input(reference, reference);
  synced.keeps_own_weights = false;
  CHECK(judge(synced).verdict == Verdict::kUnjudged);
}

TEST_CASE("accuracy: a point of the answers is allowed, exactly; more is unclear, then worse") {
  const auto reference = curve(1.0);
  JudgeInput in = input(reference, reference);
  in.held_out.correct = kCorrect - kPoint;
  CHECK(judge(in).verdict == Verdict::kFine);
  in.held_out.correct = kCorrect - kPoint - 1;
  CHECK(judge(in).verdict == Verdict::kUnclear);
  // Standard deviation of the difference: sqrt(n (0.95 0.05 + q (1 - q))), q = 0.93.
  in.held_out.correct = 930000;
  const LaneJudgement j = judge(in);
  CHECK(j.correct_drop == 20000);
  CHECK(j.correct_margin == kPoint);
  CHECK(j.correct_noise == doctest::Approx(kGapSigmas * std::sqrt(47500 + 65100.0)).epsilon(1e-9));
  CHECK(j.verdict == Verdict::kWorse);
  in.twin_held_out = {.correct = kCorrect - 2 * kPoint, .answers = kAnswers};  // chaos does as much
  CHECK(judge(in).correct_margin == 2 * kPoint);
  CHECK(judge(in).verdict == Verdict::kFine);
  in.held_out = {};
  CHECK(judge(in).answers == 0);
  CHECK(judge(in).verdict == Verdict::kFine);
}

TEST_CASE("few answers are not enough for a verdict") {
  const auto reference = curve(1.0);
  JudgeInput in = input(reference, reference);
  in.reference_held_out = {.correct = 90, .answers = 100};
  in.held_out = {.correct = 88, .answers = 100};  // two points below, with a noise of nine
  CHECK(judge(in).verdict == Verdict::kUnclear);
}

TEST_CASE("if the reference fell by less than its batch noise, nothing is judged") {
  std::vector<double> noisy(100);
  for (size_t i = 0; i < 100; ++i) noisy[i] = i % 2 == 0 ? 2.0 : 1.8;
  // Differences of 0.2: s^2 = 0.02, and the tail has ten steps.
  CHECK(learning_noise(noisy) == doctest::Approx(kGapSigmas * std::sqrt(0.02 * 1.1)).epsilon(1e-9));
  CHECK(judge(input(noisy, noisy)).verdict == Verdict::kUnjudged);
  noisy[0] = 3;
  CHECK(judge(input(noisy, noisy)).verdict == Verdict::kFine);
}

TEST_CASE("a gap within the batch noise is unclear, not worse") {
  const auto reference = curve(1.0);
  std::vector<double> noisy = curve(1.0);
  // Tail differences alternate between +0.5 and -0.3: mean 0.1, standard error 0.4 / sqrt(9).
  for (size_t i = 90; i < 100; ++i) noisy[i] = i % 2 == 0 ? 1.5 : 0.7;
  const LaneJudgement j = judge(input(noisy, reference));
  CHECK(j.gap == doctest::Approx(0.1).epsilon(1e-12));
  CHECK(j.noise == doctest::Approx(kGapSigmas * 0.4 / 3).epsilon(1e-12));
  CHECK(j.verdict == Verdict::kUnclear);
}

}  // namespace
}  // namespace lockstep
