// Can two runs be compared number by number? Everything that affects what a lane computes must be
// equal.
#pragma once

#include <string>
#include <vector>

#include "analysis/pair/run_match.h"

namespace lockstep {

// The lanes to compare (none when the runs as a whole are not comparable), and every difference of
// the set-up, a line each.
struct ComparableLanes {
  std::vector<LanePair> lanes;  // before: of the baseline
  std::vector<std::string> not_comparable;
  std::vector<std::string> missing;  // lanes or steps that the run lacks
  std::vector<std::string> remarks;  // differences that affect no number
};
ComparableLanes comparable_lanes(const RunFile& run, const RunFile& baseline);

}  // namespace lockstep
