// Did a lane train as well as the reference?
// Judged on the mean loss over the end of the run and on held-out accuracy, against a margin that
// is never below what the one-ulp twin does. One seed rules out a large regression; it cannot show
// that two lanes are equal.
//
//   gap     tail mean of the lane's loss - tail mean of the reference's     (units of the loss)
//   margin  max(kLossMarginShare * (reference's first loss - its tail mean), |twin's gap|)
//   noise   kGapSigmas * standard error of the gap, from the step-by-step differences of the tail
//
// worse: gap - noise > margin, or too little accuracy.  unclear: gap > margin, but not beyond
// noise.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace lockstep {

inline constexpr double kLossMarginShare = 0.02;  // of the reference's loss decrease over the run
inline constexpr double kAccuracyMargin = 0.01;   // one point of held-out accuracy
inline constexpr double kGapSigmas = 2;      // about 97.5 % one-sided, were the steps independent
inline constexpr int64_t kTailDivisor = 10;  // the tail: this part of the run's steps,
inline constexpr int64_t kTailSteps = 10;    // but at least so many

enum class Verdict : uint8_t {
  kReference,
  kFine,      // within the margins
  kWorse,     // trained, but beyond a margin
  kUnclear,   // beyond the loss margin, but so noisy that the run is too short to tell
  kBroke,     // died, or its loss is not finite at the end
  kUnjudged,  // the reference itself learned nothing, or the lanes do not keep their own weights
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

struct LaneJudgement {
  Verdict verdict = Verdict::kUnjudged;
  double tail_loss = 0, gap = 0, margin = 0, noise = 0;
  double accuracy_drop = 0;  // reference - lane, held out; NaN where not evaluated
};

struct JudgeInput {
  std::span<const double> lane, reference, twin;       // losses; twin may be empty
  double accuracy, reference_accuracy, twin_accuracy;  // NaN: not evaluated
  int64_t died_at = -1;
  bool keeps_own_weights = true;  // mode free
};
LaneJudgement judge(const JudgeInput& input);

}  // namespace lockstep
