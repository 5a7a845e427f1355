// Finds the infinities that a step intends.
// Those that the reference shows as well, and those that disappear again: a mask's huge number
// before a softmax, where all sites that read it are finite and agree with the reference. Later,
// when the lane has other weights, a site that has shown this once needs only finite readers.
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/findings/step_evidence.h"
#include "analysis/run/run_data.h"
#include "src/graph/site.h"

namespace lockstep {

// Readers of a site whose error is below this share of the reference's energy agree with it.
inline constexpr double kAbsorbedErrorShare = 1e-2;

// Finds them in one lane. Requires: steps in ascending order.
class IntendedInfinities {
 public:
  explicit IntendedInfinities(const SiteTable& sites);

  // By site id: the sites it feeds.
  const std::vector<std::vector<int32_t>>& readers() const { return readers_; }
  // By site id: what is not finite there disappears again. `bad`: not finite, but in the reference.
  // `same_weights`: the lane and the reference began the step with the same weights.
  std::vector<bool> absorbed(bool same_weights, const StepEvidence& lane,
                             const std::vector<bool>& bad);
  // The counts of a step without its intended infinities. The reference intends nothing. Steps that
  // only counted have no evidence of their own: what measured steps have shown holds there.
  StepCounts read_counts(const RunFile& run, int lane, int64_t step);

 private:
  std::vector<std::vector<int32_t>> readers_;
  std::vector<bool> has_absorbed_, has_shared_;  // in some measured step
};

// Whether a lane and the reference begin the step with the same weights.
bool has_same_weights(const RunFile& run, int64_t step);

}  // namespace lockstep
