// Can two runs be compared? Everything that affects what a lane computes must be equal.
#pragma once

#include <string>
#include <vector>

#include "analysis/pair/settings.h"
#include "src/record/run/run_file.h"

namespace lockstep {

struct LanePair {
  std::string name;
  int run, baseline;  // lane indices
};

// The lanes to compare (none when the runs as a whole are not comparable), and every difference of
// the set-up, a line each.
struct LanePairs {
  std::vector<LanePair> lanes;
  std::vector<std::string> not_comparable;
  std::vector<std::string> missing;  // lanes or steps that the run lacks
  std::vector<std::string> remarks;  // differences that affect no number
};
LanePairs pair_lanes(const RunFile& run, const RunFile& baseline);

}  // namespace lockstep
