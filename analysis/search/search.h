// Searches the cheapest policy that trains like FP32.
//
//   1. plain autocast, with FP32 and its twin; if it trains as FP32 does, nothing needs doing
//   2. otherwise layers stay in FP32: those that the ranges of the trace and the findings name,
//      then the points of a knapsack's frontier (format_assignment.h) over the scores of the others
//      (sensitivity.h), until a candidate passes; where that keeps many layers, or nothing passes,
//      those are looked for that spoil the run (culprits.h); each layer that can be let go is
//   3. linear layers in narrower formats on top of it, if asked for: all that pay; if that fails,
//      scores, some of them measured, the frontier, and a bisection of it (narrow_search.h)
//   4. TF32 for what is left in FP32; optimizer state, weights and sums, if asked for
//
// Every candidate is judged by running it (TrialRuns); costs are estimates (gpu_cost.h).
#pragma once

#include "analysis/search/advice.h"

namespace lockstep {

// Throws: InputError, WriteError, SearchStopped.
Advice search(TrialRuns& runs, const SearchOptions& options);

}  // namespace lockstep
