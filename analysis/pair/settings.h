// Compares the settings of two runs. Only options that affect the numbers count.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "src/train/run_option.h"
#include "src/train/run_options.h"

namespace lockstep {

// An option that affects the numbers and is not the same in both runs.
struct SetupDifference {
  std::string name, run, baseline;
};
std::vector<SetupDifference> setup_differences(const RunOptions& run, const RunOptions& baseline);
// Those of one kind.
std::vector<SetupDifference> setup_differences(const RunOptions& run, const RunOptions& baseline,
                                               OptionEffect effect);
// "mode: 'synced' here, 'free' in the baseline".
std::string difference_text(const SetupDifference& difference);

// The same options as words, without the seed and a capture's hash: what a model is trained with,
// not what it was drawn from. "optimizer lr" -> "0.01".
std::vector<std::pair<std::string, std::string>> setup_in_words(const RunOptions& options);
// Empty: both measure the same steps; statistics of others cannot be compared.
std::string other_measured_steps(const RunOptions& run, const RunOptions& baseline);

}  // namespace lockstep
