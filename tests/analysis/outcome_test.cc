// Verdicts on loss curves written by hand.
#include "analysis/outcome.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace lockstep {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

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
          .accuracy = 0.95,
          .reference_accuracy = 0.95,
          .twin_accuracy = kNan};
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

TEST_CASE("accuracy: a point below the reference is allowed, more is not") {
  const auto reference = curve(1.0);
  JudgeInput in = input(reference, reference);
  in.accuracy = in.reference_accuracy - 0.9 * kAccuracyMargin;
  CHECK(judge(in).verdict == Verdict::kFine);
  in.accuracy = in.reference_accuracy - 1.1 * kAccuracyMargin;
  CHECK(judge(in).verdict == Verdict::kWorse);
  in.twin_accuracy = in.reference_accuracy - 2 * kAccuracyMargin;  // chaos alone does as much
  CHECK(judge(in).verdict == Verdict::kFine);
  in.accuracy = kNan;
  CHECK(judge(in).verdict == Verdict::kFine);
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
