// Did a lane train as well as the reference?
// Compares the mean loss at the end of the run and the number of correct held-out answers with
// margins that are never smaller than the one-ulp twin's difference. One seed rules out a large
// regression; it cannot show that two lanes are equal.
//
//   gap     tail mean of the lane's loss - tail mean of the reference's     (units of the loss)
//   margin  max(kLossMarginShare * (reference's first loss - its tail mean), |twin's gap|)
//   noise   kGapSigmas * standard error of the gap, from the step-by-step differences of the tail
//
//   correct_drop    correct answers of the reference - correct answers of the lane
//   correct_margin  max(floor(answers / kAnswersPerPoint), |twin's drop|)
//   correct_noise   kGapSigmas * sqrt(n p (1 - p) + n q (1 - q)), the standard deviation of the
//                   difference of two independent binomial counts with the observed shares p and q.
//                   The lanes answer the same questions, so the true value is smaller; which
//                   answers agree is not recorded.
//
// worse: gap - noise > margin, or the same for the answers.  unclear: gap > margin, but not beyond
// noise. Nothing is judged unless the reference's loss fell by more than its own batch noise:
//
//   learning_noise  kGapSigmas * s * sqrt(1 + 1/n): the first loss against the mean of the tail's
//                   n, s^2 = mean of (x[i+1] - x[i])^2 / 2 over the tail, which a slope hardly
//                   moves (von Neumann 1941)
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace lockstep {

inline constexpr double kLossMarginShare = 0.02;  // of the reference's loss decrease over the run
inline constexpr int64_t kAnswersPerPoint = 100;  // one point of held-out accuracy is allowed
inline constexpr double kGapSigmas = 2;  // about 97.5 % one-sided, if the steps were independent
inline constexpr int64_t kTailDivisor = 10;  // the tail: this part of the run's steps,
inline constexpr int64_t kTailSteps = 10;    // but at least this many

enum class Verdict : uint8_t {
  kReference,
  kFine,      // within the margins
  kWorse,     // trained, but beyond a margin
  kUnclear,   // beyond a margin, but within noise: the run is too short to tell
  kBroke,     // died, or its loss is not finite at the end
  kUnjudged,  // the reference itself did not learn, or lanes do not keep their own weights
};
std::string_view to_string(Verdict verdict);

// Mean over the last max(kTailSteps, size / kTailDivisor) values (all of a shorter run); NaN for
// none.
double tail_mean(std::span<const double> loss);
std::span<const double> tail_of(std::span<const double> loss);

// Standard error of mean(a - b) over the tails of a and b; 0 for fewer than two steps.
double gap_standard_error(std::span<const double> a, std::span<const double> b);

// Units: of the loss. `twin` may be empty. Returns a value <= 0 when the reference did not learn.
double loss_margin(std::span<const double> reference, std::span<const double> twin);

// How far the reference's loss must fall before anything is judged; 0 for fewer than two steps.
double learning_noise(std::span<const double> reference);

// Answers of one evaluation. `answers` 0: not evaluated.
struct HeldOut {
  int64_t correct = 0, answers = 0;
};

struct LaneJudgement {
  Verdict verdict = Verdict::kUnjudged;
  double tail_loss = 0, gap = 0, margin = 0, noise = 0;
  // Held-out answers; 0 answers: the lane or the reference was not evaluated.
  int64_t answers = 0, correct_drop = 0, correct_margin = 0;
  double correct_noise = 0;
};

struct JudgeInput {
  std::span<const double> lane, reference, twin;  // losses; twin may be empty
  HeldOut held_out, reference_held_out, twin_held_out;
  int64_t died_at = -1;
  bool keeps_own_weights = true;  // mode free
};
LaneJudgement judge(const JudgeInput& input);

}  // namespace lockstep
