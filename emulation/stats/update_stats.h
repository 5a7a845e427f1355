// What happened to numbers that were added to stored ones: weights' updates, the batches' part of
// running statistics, gradients of micro-batches. The run file stores them in updates/.
#pragma once

#include <cstdint>

namespace lockstep {

struct UpdateStats {
  uint64_t stagnant = 0;  // dw != 0 but the rounded sum w + dw is w
  uint64_t count = 0;
  double update_sq = 0;    // sum of dw^2, dw as computed before the sum's rounding
  double weight_sq = 0;    // sum of w^2 before the addition
  double stagnant_sq = 0;  // the stagnant additions' part of update_sq

  void merge(const UpdateStats& other) {
    stagnant += other.stagnant;
    count += other.count;
    update_sq += other.update_sq;
    weight_sq += other.weight_sq;
    stagnant_sq += other.stagnant_sq;
  }
};

}  // namespace lockstep
