// Tests whether a policy trains as FP32 does, on seeds that the search never saw.
// Paired runs: each seed has its own weights, batches and noise, the same for both lanes. A capture
// has one start and a few batches: its search sees the first half of them, and a seed of the proof
// is an order of the second half. So nothing is shown of other starts.
//
//   d          the candidate's gap in one seed (analysis/run/outcome.h), in units of the loss
//   tolerance  a share of the fall of FP32's loss, mean over the seeds; never below `chaos`, the
//              root mean square of the one-ulp twins' gaps, the smallest difference visible
//   pass       mean d + t s / sqrt(n) < tolerance, s the standard deviation of the n differences
//   fail       mean d - t s / sqrt(n) > tolerance, or a seed in which the candidate broke
// t: Student's, one-sided. The runs are judged after each of kProofStages seeds, and end with the
// first answer; each look has its part of kProofErrorRate, so that all together stay within it.
// This bound of Bonferroni's needs no known scatter and no equal steps, as Pocock's and O'Brien and
// Fleming's do.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "analysis/search/trial_runs.h"

namespace lockstep {

inline constexpr std::array<int64_t, 3> kProofStages = {5, 8, 12};
inline constexpr double kProofErrorRate = 0.05;
inline constexpr double kToleratedShare = 0.02;
inline constexpr uint64_t kProofSeedsAfter = 1000;  // the first seed: the search's plus this

struct Proof {
  enum class Result : uint8_t { kPass, kFail, kInconclusive };
  Result result = Result::kInconclusive;
  std::vector<double> differences;  // by seed; NaN: broke
  double mean = 0, half_width = 0;  // of the one-sided interval
  double tolerance = 0, share = kToleratedShare;
  double fall = 0;               // of FP32's loss
  double chaos = 0;              // of one run
  bool reference_broke = false;  // in the last seed: FP32's own loss is not finite
  double seed_scatter = 0;       // standard deviation of FP32's own tail loss over the seeds
  double gap_scatter = 0;        // of the differences

  int64_t seeds() const { return static_cast<int64_t>(differences.size()); }
  // At kProofErrorRate, the largest share of all seeds that may break although none of these did: 1
  // - kProofErrorRate^(1/n).
  double most_breaking() const;
  // The smallest tolerance that these runs could have shown, and as a share of the fall.
  double smallest_shown() const { return mean + half_width; }
  double smallest_share() const { return smallest_shown() / fall; }
};

// One seed's numbers.
struct ProofPair {
  double difference = 0, fall = 0, chaos = 0, reference_loss = 0;
};
// The judgement after these seeds. Requires: at least two, or one that broke.
Proof judge_pairs(const std::vector<ProofPair>& pairs, double share);

// A capture of so many steps or more can be halved: 4 steps have 24 orders, more than the last
// stage needs.
inline constexpr int64_t kFewestCapturedSteps = 8;
// The captured steps that a search sees, if there will be a proof: the first half.
std::vector<int64_t> steps_for_search(int64_t captured);
// Those of the proof, in the order of this seed.
std::vector<int64_t> steps_for_proof(int64_t captured, uint64_t seed);

// Runs seeds until a stage decides. `captured`: steps of a capture, 0: a built-in model. Throws: as
// TrialRuns::run.
Proof prove(TrialRuns& runs, const Candidate& candidate, double share, int64_t captured);

}  // namespace lockstep
