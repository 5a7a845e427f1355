// The cheapest format of every part of a large model that keeps the loss: replays of the folder in
// the base format and in narrow ones, a choice by part, and a replay of what was chosen.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "analysis/parts/part_advice.h"
#include "src/jobs/executor.h"
#include "src/record/capture/parts_index.h"
#include "src/train/run_options.h"

namespace lockstep {

struct PartSearchOptions {
  RunOptions replay;                 // of every part: no lanes
  std::string base = "bf16";         // a row of base_formats()
  std::vector<std::string> formats;  // rows of narrow_formats(): each alone on top of the base
  double tolerance = 0;              // of the change of the loss, to either side
  bool interpolates = false;         // parts between two captured ones, by their numbers
  const Gpu* gpu = nullptr;
  std::string folder, command_line;  // the folder of the run files
};

// Memory: of replay_parts(). Throws: SearchStopped (trial_runs.h), the runs that are complete are
// kept; InputError, WriteError: as replay_parts().
PartAdvice search_parts(const PartsIndex& index, const PartSearchOptions& options,
                        const JobWatch& watch, const std::atomic<bool>& stop);

}  // namespace lockstep
