// `lockstep recommend MODEL|CAPTURE|RUN --fix LANE`: runs a lane that goes wrong and the remedies
// of what is found in it.
#pragma once

#include <optional>
#include <string>

#include "analysis/search/search_budget.h"
#include "src/train/run_options.h"

namespace lockstep {

struct FixArgs {
  RunOptions options;  // of every replay, without lanes; `model` is MODEL, a capture
  std::string lane, output, folder;
  SearchBudget budget;
  bool json = false, quiet = false;
};

// The options of a recorded run, for --fix. `steps`: 0: as many as were recorded. Throws:
// InputError: no run file, or a capture that has moved or changed.
RunOptions options_of_run(const std::string& path, int64_t steps);

// Returns an exit code.
int recommend_fix(FixArgs& args);

}  // namespace lockstep
