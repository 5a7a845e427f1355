// Judges whether a lane trained as well as the reference.
// Compares the mean loss at the end of the run, and the number of correct held-out answers, with
// noise measured in the same run (analysis/run/loss_noise.h); no margin is set by hand. A run may
// hold several seeds: every lane is then compared with the reference of its own seed, which saw the
// same batches, and the n gaps are judged together. One seed rules out a large regression; it
// cannot show that two lanes are equal.
//
//   gap           tail mean of the lane's loss - tail mean of the reference's (units of the loss),
//                 mean over the seeds. A lane that skipped k steps is compared with the reference k
//                 steps before its end: both have made as many updates.
//   seed_bound    t(n - 1) s / sqrt(n), s the standard deviation of the n gaps: as far from 0 lies
//                 the mean gap of a lane equal to the reference, at kErrorRate (Student's t test
//                 of paired differences). Infinite for one seed, where it is not used.
//   batch_noise   of the mean gap: sqrt(sum of squares of the seeds' batch noises) / n
//   chaos         of the mean gap: root mean square of the twins' gaps, all seeds pooled, / sqrt(n)
//   chaos_bound   t(k) chaos for k pooled gaps. Without twins: infinite for one seed; for several
//                 it is not used, because the gaps' own scatter contains chaos.
//
//   correct_drop  correct answers of the reference - correct answers of the lane, mean over the
//                 seeds; its bounds as for the gap. A twin gives one value: with fewer than
//                 kFewestTwins in all seeds together there is no bound from twins.
//   correct_noise t(infinity) sqrt(a p (1 - p) + a q (1 - q)) for one seed: two independent
//                 binomial counts of a answers with the observed shares p and q. The lanes answer
//                 the same questions, so the true value is smaller; which answers agree is not
//                 recorded.
//
//   fine      the gap lies within batch noise, within what a twin did, or within its own standard
//             error s / sqrt(n); the answers too
//   worse     the gap lies beyond seed_bound, batch_noise and chaos_bound, or the answers beyond
//             theirs: each at kErrorRate
//   unclear   between the two; seeds_to_decide says how many seeds would decide
//   broke     in at least one seed
//   stalled   its loss did not fall, though the reference's did, in more seeds than chance explains
//             at kErrorRate
// Nothing is judged if in some seed every step was skipped, or unless the reference learned: the
// fall of its loss, mean over the seeds, is more than learning_noise.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "analysis/run/loss_noise.h"

namespace lockstep {

inline constexpr size_t kFewestTwins = 3;  // from which a bound on answers is taken: t(3) = 4.5
inline constexpr int64_t kMostDecidingSeeds = 100;

enum class Verdict : uint8_t {
  kReference,
  kFine,      // within the measured noise
  kUnclear,   // beyond what was measured, but within what noise may do
  kWorse,     // trained, but beyond the noise
  kStalled,   // its loss did not fall, though the reference's did
  kBroke,     // died, or its loss is not finite at the end
  kTooShort,  // the reference has not learned yet, or the lane took no step
  kUnjudged,  // lanes do not keep their own weights
};
std::string_view to_string(Verdict verdict);

// Answers of one evaluation. `answers` 0: not evaluated.
struct HeldOut {
  int64_t correct = 0, answers = 0;
};

struct LaneJudgement {
  Verdict verdict = Verdict::kUnjudged;
  // Means over the seeds in which the lane did not break, and their noise.
  double tail_loss = 0, gap = 0, batch_noise = 0, chaos = 0, chaos_bound = 0, seed_bound = 0;
  int64_t tail_steps = 0;  // that tail_loss is a mean of, in each seed; the fewest
  // Held-out answers of one seed; 0 answers: the lane or the reference was not evaluated in some
  // seed.
  int64_t answers = 0;
  double correct_drop = 0, correct_noise = 0, correct_chaos = 0, correct_chaos_bound = 0;
  double correct_seed_bound = 0;
  int64_t seeds = 1, broke_in = 0, stalled_in = 0;
  int64_t first_broken = -1;  // index of the first seed in which it broke
  // Only for kUnclear: the fewest seeds with which the bounds would be below the gap (or the drop),
  // if gap and scatter stay as measured; kMostDecidingSeeds + 1: more than that; 0: not known,
  // because no scatter was measured.
  int64_t seeds_to_decide = 0;
};

struct JudgeInput {
  std::span<const double> lane, reference;     // losses
  std::vector<std::span<const double>> twins;  // may be empty
  HeldOut held_out, reference_held_out;
  std::vector<HeldOut> twins_held_out;
  std::vector<int64_t> skips;  // steps the lane skipped; their losses need not be finite
  int64_t died_at = -1;
  bool keeps_own_weights = true;  // and moves them by its own gradients
};
// One lane in one seed or several. Requires: at least one.
LaneJudgement judge_seeds(std::span<const JudgeInput> seeds);
LaneJudgement judge(const JudgeInput& input);

// The smallest n >= 2 with t(n - 1) scatter / sqrt(n) < mean and other_bound / sqrt(n) < mean,
// where `scatter` is a standard deviation over seeds and `other_bound` a bound for one seed.
// Requires: mean > 0. Returns: at most kMostDecidingSeeds + 1.
int64_t seeds_to_decide(double mean, double scatter, double other_bound);

}  // namespace lockstep
