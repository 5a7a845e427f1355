// Counts how often a lane's own values would have chosen otherwise than the recorded step did.
// The run file stores them in decisions/. A decision is one recorded place, rank or truth value;
// its margin is the distance between the two values that it chose between.
#pragma once

#include <algorithm>
#include <cstdint>

namespace lockstep {

struct DecisionStats {
  uint64_t count = 0, flipped = 0;
  // Not flipped, but as good as another choice: the value equals one that was not chosen. What
  // PyTorch would take there depends on its kernel.
  uint64_t tied = 0;
  // The margins of the flipped decisions, in the lane's values; those that are not finite are left
  // out.
  double margin_max = 0, margin_sum = 0;

  void merge(const DecisionStats& other) {
    count += other.count;
    flipped += other.flipped;
    tied += other.tied;
    margin_max = std::max(margin_max, other.margin_max);
    margin_sum += other.margin_sum;
  }
};

}  // namespace lockstep
