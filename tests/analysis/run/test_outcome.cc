// Verdicts on loss curves written by hand.
#include "analysis/run/outcome.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "src/core/random.h"

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

TEST_CASE("the tail is a tenth of the run, at least ten steps, at most the second half") {
  CHECK(tail_of(std::vector<double>(200)).size() == 20);
  CHECK(tail_of(std::vector<double>(50)).size() == 10);
  CHECK(tail_of(std::vector<double>(16)).size() == 8);
  CHECK(tail_of(std::vector<double>(3)).size() == 2);
  CHECK(tail_of(std::vector<double>(1)).size() == 1);
  CHECK(tail_mean(std::vector<double>{1, 2, 3}) == 2.5);
  CHECK(end_mean(std::vector<double>{1, 2, 3}) == 2);
  CHECK(std::isnan(tail_mean({})));
}

TEST_CASE("chaos: every stretch of the tail's length in the second half, then Student's quantile") {
  // The second half of 100 steps has five stretches of ten.
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

TEST_CASE("changes of stretches are a bound from three of them on") {
  // Rising stretches of ten, 0.1 apart: of 60 steps the second half has three, two changes.
  const auto rising = [](size_t steps) {
    std::vector<double> loss(steps);
    for (size_t i = 0; i < steps; ++i) loss[i] = 0.1 * static_cast<double>(i / 10);
    return loss;
  };
  CHECK(batch_noise(rising(60), rising(60)) == 0);
  CHECK(batch_noise(rising(80), rising(80)) == doctest::Approx(0.4541).epsilon(1e-3));  // t(3) 0.1
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

// Seeds of lanes that end at 1 + gap, against references that end at 1.
struct Seeds {
  std::vector<std::vector<double>> lanes;
  std::vector<double> reference = curve(1.0), twin;

  explicit Seeds(const std::vector<double>& gaps, double twin_gap = 0) : twin(curve(1 + twin_gap)) {
    for (const double gap : gaps) lanes.push_back(curve(1 + gap));
  }
  LaneJudgement judge(bool with_twin = true) const {
    std::vector<JudgeInput> inputs;
    for (const std::vector<double>& lane : lanes) {
      JudgeInput& in = inputs.emplace_back();
      in.lane = lane;
      in.reference = reference;
      if (with_twin) in.twins = {twin};
    }
    return judge_seeds(inputs);
  }
};

TEST_CASE("several seeds: Student's t over their gaps") {
  // Mean 0.2, standard deviation 0.1, t(2) = 6.965: bound 6.965 0.1 / sqrt(3) = 0.4021.
  const LaneJudgement three = Seeds({0.1, 0.2, 0.3}).judge();
  CHECK(three.seeds == 3);
  CHECK(three.gap == doctest::Approx(0.2));
  CHECK(three.seed_bound == doctest::Approx(0.4021).epsilon(1e-3));
  CHECK(three.verdict == Verdict::kUnclear);
  // t(3) 0.1 / 2 = 0.227 > 0.2; t(4) 0.1 / sqrt(5) = 3.747 0.0447 = 0.168 < 0.2.
  CHECK(three.seeds_to_decide == 5);
  CHECK(Seeds({0.1, 0.2, 0.3, 0.1, 0.2, 0.3}).judge().verdict == Verdict::kWorse);
  CHECK(Seeds({0.1, 0.2, 0.3, 0.1, 0.2, 0.3}).judge(false).verdict == Verdict::kWorse);  // no twin
  CHECK(Seeds({-0.3, 0.1, 0.3}).judge().verdict == Verdict::kFine);  // within its standard error
  CHECK(Seeds({0.5}).judge(false).verdict == Verdict::kUnclear);     // neither twin nor scatter
  CHECK(Seeds({0.5}).judge(false).seeds_to_decide == 0);
}

TEST_CASE("several seeds: the twins' gaps are pooled, and shrink with the mean") {
  // 6 seeds x 5 stretches = 30 gaps of 0.3: t(30) = 2.457; 2.457 0.3 / sqrt(6) = 0.301.
  const LaneJudgement j = Seeds({0.1, 0.2, 0.3, 0.1, 0.2, 0.3}, 0.3).judge();
  CHECK(j.chaos == doctest::Approx(0.3 / std::sqrt(6)));
  CHECK(j.chaos_bound == doctest::Approx(0.3010).epsilon(1e-3));
  CHECK(j.verdict == Verdict::kUnclear);
  CHECK(j.seeds_to_decide == 14);  // 2.457 0.3 / sqrt(14) = 0.197 < 0.2
}

TEST_CASE("how many seeds would decide: the first n with t(n - 1) s / sqrt(n) below the mean") {
  CHECK(seeds_to_decide(1, 0.01, 0) == 2);  // 31.82 0.01 / 1.414 = 0.225
  CHECK(seeds_to_decide(1, 0.1, 0) == 3);   // 2.25; 6.965 0.1 / 1.732 = 0.402
  CHECK(seeds_to_decide(1, 1, 0) == 9);     // 8: 2.998 / 2.828 = 1.06; 9: 2.896 / 3 = 0.965
  CHECK(seeds_to_decide(1, 0, 3.9) == 16);  // 15: 3.9 / 3.873 = 1.007
  CHECK(seeds_to_decide(1, 100, 0) == kMostDecidingSeeds + 1);
}

TEST_CASE("broke: in how many seeds; stalled: in more than chance explains") {
  Seeds some({0, 0, 0});
  some.lanes[1] = curve(kNan);
  const LaneJudgement j = some.judge();
  CHECK(j.verdict == Verdict::kBroke);
  CHECK(j.broke_in == 1);
  CHECK(j.first_broken == 1);
  CHECK(j.gap == 0);  // of the others
  CHECK(Seeds({1.1, 0, 0}).judge().stalled_in == 1);
  CHECK(Seeds({1.1, 0, 0}).judge().verdict != Verdict::kStalled);  // 1 of 3: 2.97 %
  CHECK(Seeds({1.1, 1.2, 0}).judge().verdict == Verdict::kStalled);
  CHECK(Seeds({1.1}).judge().verdict == Verdict::kStalled);
}

TEST_CASE("several seeds: held-out answers") {
  const std::vector<double> same = curve(1.0);
  const auto judged = [&](const std::vector<int64_t>& drops) {
    std::vector<JudgeInput> inputs;
    for (const int64_t drop : drops) {
      JudgeInput& in = inputs.emplace_back();
      in.lane = in.reference = same;
      in.twins = {same};
      in.reference_held_out = {.correct = 9500, .answers = 10000};
      in.held_out = {.correct = 9500 - drop, .answers = 10000};
      in.twins_held_out = {in.reference_held_out};
    }
    return judge_seeds(inputs);
  };
  // Binomial noise 74 / sqrt(5) = 33; s = 15.8, t(4) 15.8 / sqrt(5) = 26.5.
  const LaneJudgement worse = judged({80, 90, 100, 110, 120});
  CHECK(worse.correct_drop == 100);
  CHECK(worse.correct_seed_bound == doctest::Approx(26.49).epsilon(1e-3));
  CHECK(worse.verdict == Verdict::kWorse);
  CHECK(judged({10, 20, 30, 40, 50}).verdict == Verdict::kFine);
  const LaneJudgement wide = judged({0, 0, 0, 200, 500});  // s = 219: bound 367
  CHECK(wide.verdict == Verdict::kUnclear);
  CHECK(wide.seeds_to_decide > 5);
}

// A standard normal number from a counter (Box and Muller).
double normal(const RandomStream& random, uint64_t n) {
  constexpr double kTwoPi = 6.283185307179586;
  return std::sqrt(-2 * std::log(1 - random.uniform(2 * n))) *
         std::cos(kTwoPi * random.uniform(2 * n + 1));
}

TEST_CASE("lanes equal to the reference are called worse at the stated error rate") {
  constexpr int kDraws = 20000;
  for (const size_t seeds : {2, 3, 5}) {
    CAPTURE(seeds);
    const RandomStream random(1, RandomPurpose::kTest, static_cast<uint32_t>(seeds));
    int worse = 0, worse_with_twins = 0;
    for (int draw = 0; draw < kDraws; ++draw) {
      std::vector<double> gaps(seeds);
      const uint64_t first = static_cast<uint64_t>(draw) * (seeds + 1);
      for (size_t i = 0; i < seeds; ++i) gaps[i] = 0.05 * normal(random, first + i);
      const Seeds run(gaps, 0.05 * normal(random, first + seeds));
      worse += run.judge(false).verdict == Verdict::kWorse;
      worse_with_twins += run.judge(true).verdict == Verdict::kWorse;
    }
    // These curves have no batch noise, so that without a twin the t test alone decides.
    const double spread = 5 * std::sqrt(kErrorRate * (1 - kErrorRate) / kDraws);
    CHECK(std::fabs(static_cast<double>(worse) / kDraws - kErrorRate) < spread);
    CHECK(worse_with_twins <= worse);
  }
}

}  // namespace
}  // namespace lockstep
