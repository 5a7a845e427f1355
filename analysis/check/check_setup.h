// Are two runs about the same thing? Everything that decides what a lane computes must be equal, or
// there is nothing to compare.
#pragma once

#include "analysis/check/check.h"

namespace lockstep {

struct LanePair {
  std::string name;
  int run, baseline;  // lane indices
};

// Fills not_comparable, missing and remarks of `result`; returns the lanes to compare (none when
// the runs as a whole are not comparable).
std::vector<LanePair> pair_lanes(const RunFile& run, const RunFile& baseline, CheckResult& result);

}  // namespace lockstep
