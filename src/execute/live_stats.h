// What a monitor knows of a site in the user's own run, where nothing is replayed: the rank and the
// micro-batch that the extremes are from, before any reduction, and what a narrower format would do
// to updates. Plain data.
#pragma once

#include <cstdint>

namespace lockstep {

struct LiveStats {
  // Weights with a gradient that would keep their value in BF16: bf16(bf16(w) + dw) == bf16(w),
  // dw != 0. Of BF16 weights, whose dw is not to be seen: those that kept it.
  uint64_t stagnant_bf16 = 0;
  // Of the largest magnitude, and of the first values that are not finite; -1: not known, none.
  int64_t largest_rank = -1, largest_micro_batch = -1;
  int64_t nonfinite_rank = -1, nonfinite_micro_batch = -1;
};

}  // namespace lockstep
