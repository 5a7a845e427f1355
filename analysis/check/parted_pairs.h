// Pairs of sites that the structure makes (run_match.h) and the values of the first step part:
// those that are doubtful (shared_places.h), and operands that have changed places.
#pragma once

#include <cstddef>
#include <set>

#include "analysis/check/ensemble.h"
#include "analysis/check/judged_run.h"

namespace lockstep {

// Sites of the baseline. Requires: some bits differ. `draw`: how the run differs from the baseline.
std::set<size_t> parted_pairs(const JudgedRun& run, const Ensemble& ensemble, Draw draw,
                              double alpha);

}  // namespace lockstep
