// `lockstep recommend MODEL|CAPTURE|RUN --fix LANE`: runs a lane that goes wrong and the remedies
// of what is found in it.
#pragma once

#include <optional>
#include <string>

#include "analysis/report/report.h"
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

// Where the runs of a model, capture or run file are kept: "lenet.recommend" in the working folder;
// of a capture or a run next to it, if that folder can be written to.
std::string search_folder(const std::string& model);

// Returns an exit code.
int recommend_fix(FixArgs& args);

// Runs the remedies of the lanes with findings, the first kTriedLanes of them, where the recorded
// replay took kQuickSeconds or less; a note says why not. Throws: SearchStopped.
inline constexpr double kQuickSeconds = 5;
inline constexpr size_t kTriedLanes = 3;
void try_remedies(Report& report);

}  // namespace lockstep
