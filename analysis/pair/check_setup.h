// Can two runs be compared? Everything that affects what a lane computes must be equal.
#pragma once

#include <string>
#include <vector>
#include "src/record/run/run_reader.h"

namespace lockstep {

// An option that affects the numbers and is not the same in both runs.
struct SetupDifference {
  std::string name, run, baseline;
};
std::vector<SetupDifference> setup_differences(const RunOptions& run, const RunOptions& baseline);

// The same options as words, without the seed and a capture's hash: what a model is trained with,
// not what it was drawn from. "optimizer lr" -> "0.01".
std::vector<std::pair<std::string, std::string>> setup_in_words(const RunOptions& options);
// Empty: both measure the same steps; statistics of others cannot be compared.
std::string other_measured_steps(const RunOptions& run, const RunOptions& baseline);

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
