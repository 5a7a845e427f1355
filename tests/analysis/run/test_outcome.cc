// Verdicts on loss curves written by hand.
#include "analysis/run/outcome.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace lockstep {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// From 2.0 down to `end`; in the tail every second value is `step` higher.
std::vector<double> curve(double end, double step = 0) {
  std::vector<double> loss(100, end);
  loss[0] = 2.0;
  for (size_t i = 90; i < 100; i += 2) loss[i] += step;
  return loss;
}

struct Case {
  std::vector<double> lane, reference;
  std::vector<std::vector<double>> twins = {};
  HeldOut held_out = {}, reference_held_out = {};
  std::vector<HeldOut> twins_held_out = {};
  std::vector<int64_t> skips = {};
  int64_t died_at = -1;
  bool keeps_own_weights = true;

  LaneJudgement judge() const {
    JudgeInput in{.lane = lane,
                  .reference = reference,
                  .twins = {},
                  .held_out = held_out,
                  .reference_held_out = reference_held_out,
                  .twins_held_out = twins_held_out,
                  .skips = skips,
                  .died_at = died_at,
                  .keeps_own_weights = keeps_own_weights};
    for (const auto& twin : twins) in.twins.emplace_back(twin);
    return lockstep::judge(in);
  }
};

TEST_CASE("the tail is a tenth of the run, at least ten steps") {
  CHECK(tail_of(std::vector<double>(200)).size() == 20);
  CHECK(tail_of(std::vector<double>(50)).size() == 10);
  CHECK(tail_of(std::vector<double>(3)).size() == 3);
  CHECK(tail_mean(std::vector<double>{1, 2, 3}) == 2);
  CHECK(std::isnan(tail_mean({})));
}

TEST_CASE("chaos: every stretch of the tail's length in the second half, then Student's quantile") {
  // Of 100 steps the second half has five stretches of ten.
  CHECK(chaos_gaps(curve(1.0), curve(1.01)).size() == 5);
  CHECK(chaos_of(std::vector<double>{3, -4}) == doctest::Approx(std::sqrt(12.5)));
  // t(1) at 1 % is 31.82, t(5) is 3.365 (any table).
  CHECK(chaos_bound(std::vector<double>{0.1}) == doctest::Approx(3.182).epsilon(1e-3));
  CHECK(chaos_bound(std::vector<double>(5, -0.1)) == doctest::Approx(0.3365).epsilon(1e-3));
  CHECK(std::isinf(chaos_bound({})));
  // One lucky stretch at the end does not make the noise small.
  std::vector<double> twin = curve(1.1);
  for (size_t i = 90; i < 100; ++i) twin[i] = 1;
  CHECK(chaos_of(chaos_gaps(curve(1.0), twin)) == doctest::Approx(0.1 * std::sqrt(0.8)));
}

TEST_CASE("batch noise: t(n - 1) sqrt((s^2 + s_ref^2) / n) over the tails") {
  // Steps of 0.2 in the tail of ten: s^2 = 0.02; t(9) at 1 % is 2.821.
  std::vector<double> wave(100);
  for (size_t i = 0; i < 100; ++i) wave[i] = i % 2 == 0 ? 1.2 : 1.0;
  CHECK(batch_noise(wave, wave) ==
        doctest::Approx(2.821 * std::sqrt(0.02) * std::sqrt(0.2)).epsilon(1e-3));
  CHECK(batch_noise(wave, std::vector<double>(100, 1)) ==
        doctest::Approx(2.821 * std::sqrt(0.02) * std::sqrt(0.1)).epsilon(1e-3));
  CHECK(learning_noise(curve(1, 0.2)) ==
        doctest::Approx(2.821 * std::sqrt(0.02) * std::sqrt(1.1)).epsilon(1e-3));
  CHECK(batch_noise(std::vector<double>{1}, std::vector<double>{1}) == 0);
}

TEST_CASE("verdicts by the loss") {
  const std::vector<double> reference = curve(1.0);
  const std::vector<std::vector<double>> twins = {curve(1.01)};  // bound 3.365 0.01
  CHECK(Case{reference, reference, twins}.judge().verdict == Verdict::kFine);
  CHECK(Case{curve(1.009), reference, twins}.judge().verdict == Verdict::kFine);
  CHECK(Case{curve(0.5), reference, twins}.judge().verdict == Verdict::kFine);
  CHECK(Case{curve(1.03), reference, twins}.judge().verdict == Verdict::kUnclear);
  CHECK(Case{curve(1.04), reference, twins}.judge().verdict == Verdict::kWorse);
  CHECK(Case{curve(1.33), reference, {}}.judge().verdict == Verdict::kUnclear);  // no twin
  CHECK(Case{curve(2.1), reference, twins}.judge().verdict == Verdict::kStalled);
  CHECK(Case{curve(kNan), reference, twins}.judge().verdict == Verdict::kBroke);
  CHECK(Case{reference, curve(2.5), twins}.judge().verdict == Verdict::kTooShort);
  Case died{reference, reference, twins};
  died.died_at = 12;
  CHECK(died.judge().verdict == Verdict::kBroke);
  Case synced{reference, reference, twins};
  synced.keeps_own_weights = false;
  CHECK(synced.judge().verdict == Verdict::kUnjudged);
}

TEST_CASE("progress within a stretch of the tail's length is no regression") {
  std::vector<double> falling(100);
  for (size_t i = 0; i < 100; ++i) falling[i] = 2 - 0.01 * static_cast<double>(i);
  // Five stretches of ten, each 0.1 below the one before: t(4) is 3.747.
  CHECK(batch_noise(falling, falling) == doctest::Approx(0.3747).epsilon(1e-3));
}

TEST_CASE("a gap within the batch noise is fine, whatever the twin did") {
  const Case noisy{curve(1.15), curve(1.0, 0.3), {curve(1.0, 0.3)}};
  CHECK(noisy.judge().batch_noise > 0.16);
  CHECK(noisy.judge().verdict == Verdict::kFine);
}

TEST_CASE("the held-out answers: binomial noise, and what a twin did") {
  constexpr int64_t kAnswers = 10000, kCorrect = 9500;
  Case c{curve(1.0), curve(1.0), {curve(1.0)}};
  c.reference_held_out = {.correct = kCorrect, .answers = kAnswers};
  c.twins_held_out = {{.correct = kCorrect - 1, .answers = kAnswers}};
  c.held_out = {.correct = kCorrect - 60, .answers = kAnswers};
  // 2.326 sqrt(10000 (0.95 0.05 + 0.944 0.056)) = 73.6
  CHECK(c.judge().correct_noise == doctest::Approx(73.65).epsilon(1e-3));
  CHECK(c.judge().verdict == Verdict::kFine);
  c.held_out.correct = kCorrect - 100;
  CHECK(c.judge().verdict == Verdict::kUnclear);  // one twin may be close by luck
  c.twins_held_out.assign(3, {.correct = kCorrect - 10, .answers = kAnswers});  // t(3) 10 = 45
  CHECK(c.judge().verdict == Verdict::kWorse);
  c.twins_held_out.assign(3, {.correct = kCorrect - 30, .answers = kAnswers});  // 136
  CHECK(c.judge().verdict == Verdict::kUnclear);
  c.twins_held_out[0].correct = kCorrect - 100;
  CHECK(c.judge().verdict == Verdict::kFine);
  c.held_out = {};
  CHECK(c.judge().answers == 0);
}

TEST_CASE("skipped steps: their NaN is no verdict, and the lane is compared that much earlier") {
  std::vector<double> falling(100);
  for (size_t i = 0; i < 100; ++i) falling[i] = 2 - 0.01 * static_cast<double>(i);
  Case c{falling, falling, {falling}};
  c.lane.insert(c.lane.begin(), {kNan, kNan});
  c.lane.resize(100);
  c.skips = {0, 1};
  CHECK(c.judge().gap == doctest::Approx(0).epsilon(1e-12));
  CHECK(c.judge().verdict == Verdict::kFine);
  Case all{std::vector<double>(100, kNan), falling, {falling}};
  for (int64_t i = 0; i < 100; ++i) all.skips.push_back(i);
  CHECK(all.judge().verdict == Verdict::kBroke);
}

}  // namespace
}  // namespace lockstep
