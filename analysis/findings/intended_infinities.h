// Finds the infinities that a step intends.
// Those that the reference shows as well, and those that disappear again: a mask's huge number
// before a softmax, where all sites that read it are finite and agree with the reference. Later,
// when the lane has other weights, a site that has shown this once needs only finite readers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "analysis/findings/step_evidence.h"
#include "analysis/run/nonfinite_counts.h"
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
  // What is not finite in a step, without what is intended. Steps that only counted have no
  // evidence of their own: what measured steps have shown holds there.
  std::vector<NonfiniteCounts> unintended(bool is_measured, bool same_weights,
                                          std::span<const SiteRecord> lane,
                                          std::span<const SiteRecord> reference);

 private:
  std::vector<std::vector<int32_t>> readers_;
  std::vector<bool> has_absorbed_, has_shared_;  // in some measured step
};

}  // namespace lockstep
