// Judges how every lane of a run file ended, over all of its seeds.
// Reads what an outcome rests on (losses, answers, skipped steps) and judges it by
// analysis/run/outcome.h. Knows nothing of what rounding did to single tensors.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "analysis/run/outcome.h"
#include "src/record/run/run_reader.h"

namespace lockstep {

// What the outcome of one lane rests on, in one seed.
struct LaneCourse {
  std::string name;
  std::vector<double> loss;    // by step
  HeldOut held_out;            // at the last evaluation
  std::vector<int64_t> skips;  // the steps
  int64_t died_at = -1;
  bool is_reference = false;
};
struct SeedCourses {
  uint64_t seed = 1;
  bool keeps_own_weights = true;  // see trains_itself()
  std::vector<LaneCourse> lanes;  // the reference first
};

// A step is skipped for all losses at once, so every scaler's column shows it.
std::vector<int64_t> skipped_steps(const std::vector<ScalerRecord>& scaler);
// The answers of the last evaluation; none without one, or if its accuracy is not finite.
HeldOut held_out_of(const std::vector<Evaluation>& evaluations);

// Whether PyTorch's updates, or none at all, move the weights: not the lanes' own gradients.
bool has_recorded_updates(const RunOptions& options);
// Whether every lane keeps its own weights and moves them by its own gradients: not in synced mode,
// and not with recorded updates or in inference.
bool trains_itself(const RunOptions& options);

// One seed's run.
SeedCourses read_courses(const RunFile& run);
// Every complete seed of a run file, its first among them (also if unfinished).
std::vector<SeedCourses> read_all_courses(const RunFile& first);

// The judgement of each lane, in their order. Twins are the noise of all other lanes, and of each
// other. Requires: the same lanes in all seeds.
std::vector<LaneJudgement> judge_lanes(std::span<const SeedCourses> seeds);

}  // namespace lockstep
