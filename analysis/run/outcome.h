// Did a lane train as well as the reference?
// Compares the mean loss at the end of the run, and the number of correct held-out answers, with
// noise measured in the same run; no margin is set by hand. One seed rules out a large regression;
// it cannot show that two lanes are equal.
//
//   gap           tail mean of the lane's loss - tail mean of the reference's   (units of the
//   loss).
//                 A lane that skipped k steps is compared with the reference k steps before its
//                 end: both have made as many updates.
//   batch_noise   how far two tail means lie apart by their batches alone, at kErrorRate:
//                 t(n - 1) sqrt((s^2 + s_ref^2) / n) over the n steps of the tail, s^2 = mean of
//                 (x[i+1] - x[i])^2 / 2, which a slope hardly moves (von Neumann 1941); or, if that
//                 is larger, t(k) times the root mean square of the k changes from one stretch of
//                 the tail's length to the next, in the second half of the reference's run: single
//                 batches with a large loss may dominate a tail, and progress within such a stretch
//                 is no regression
//   chaos         how far one ulp takes the loss: the root mean square of the gaps between the
//                 reference and its twins. A single gap may be small by luck, so every stretch of
//                 the tail's length in the second half of the run counts, k gaps in all.
//   chaos_bound   t(k) chaos: a lane lies as far from the reference by one ulp alone, at
//   kErrorRate;
//                 infinite without twins
//
//   correct_drop    correct answers of the reference - correct answers of the lane. Of its chaos
//                   there is one value for each twin: with fewer than kFewestTwins the bound is
//                   infinite.
//   correct_noise   t(infinity) sqrt(n p (1 - p) + n q (1 - q)): two independent binomial counts
//   with
//                   the observed shares p and q. The lanes answer the same questions, so the true
//                   value is smaller; which answers agree is not recorded.
//
// t(k): Student's quantile for k degrees of freedom at 1 - kErrorRate.
//   fine      gap within batch noise or within what a twin did; the answers too
//   worse     gap beyond batch_noise and chaos_bound, or the answers beyond theirs
//   unclear   between the two
// Nothing is judged unless the reference learned: its loss fell by more than learning_noise, the
// bound of the first loss against the mean of the tail, t(n - 1) s sqrt(1 + 1/n).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace lockstep {

inline constexpr double kErrorRate = 0.01;   // of calling a lane worse that is not
inline constexpr int64_t kTailDivisor = 10;  // the tail: this part of the run's steps,
inline constexpr int64_t kTailSteps = 10;    // but at least this many
inline constexpr size_t kFewestTwins = 3;    // from which a bound on answers is taken: t(3) = 4.5

enum class Verdict : uint8_t {
  kReference,
  kFine,      // within the measured noise
  kUnclear,   // beyond what was measured, but within what noise may do
  kWorse,     // trained, but beyond the noise
  kStalled,   // its loss did not fall, though the reference's did
  kBroke,     // died, or its loss is not finite at the end
  kTooShort,  // the reference has not learned yet
  kUnjudged,  // lanes do not keep their own weights
};
std::string_view to_string(Verdict verdict);

// Mean over the last max(kTailSteps, size / kTailDivisor) values (all of a shorter run); NaN for
// none.
double tail_mean(std::span<const double> loss);
std::span<const double> tail_of(std::span<const double> loss);

// See above; 0 for fewer than two steps.
double batch_noise(std::span<const double> lane, std::span<const double> reference);
double learning_noise(std::span<const double> loss);

// The gaps of a twin, from the end backwards. Requires: of one length.
std::vector<double> chaos_gaps(std::span<const double> reference, std::span<const double> twin);
// Root mean square of the gaps; 0 for none.
double chaos_of(std::span<const double> gaps);
// t(k) chaos of k gaps; infinite for none.
double chaos_bound(std::span<const double> gaps);

// Answers of one evaluation. `answers` 0: not evaluated.
struct HeldOut {
  int64_t correct = 0, answers = 0;
};

struct LaneJudgement {
  Verdict verdict = Verdict::kUnjudged;
  double tail_loss = 0, gap = 0, batch_noise = 0, chaos = 0, chaos_bound = 0;
  // Held-out answers; 0 answers: the lane or the reference was not evaluated.
  int64_t answers = 0, correct_drop = 0;
  double correct_noise = 0, correct_chaos = 0, correct_chaos_bound = 0;
};

struct JudgeInput {
  std::span<const double> lane, reference;     // losses
  std::vector<std::span<const double>> twins;  // may be empty
  HeldOut held_out, reference_held_out;
  std::vector<HeldOut> twins_held_out;
  std::vector<int64_t> skips;  // steps the lane skipped; their losses need not be finite
  int64_t died_at = -1;
  bool keeps_own_weights = true;  // mode free
};
LaneJudgement judge(const JudgeInput& input);

}  // namespace lockstep
