// The replay of a folder of parts: a job for each part in each captured step of each rank, then one
// run file of all (joined_run.h). The jobs' results stand next to it until it is complete, so that
// a replay that was stopped goes on with the parts that it lacks.
#pragma once

#include <atomic>
#include <string>

#include "src/jobs/executor.h"
#include "src/record/capture/parts_index.h"
#include "src/train/run_options.h"

namespace lockstep {

struct PartsReplay {
  RunOptions options;  // of every part: lanes, what is recorded; or those of a joined run
  std::string path, command_line;  // what stands at `path` is replaced when all is done
};

// The folder of the jobs' results.
std::string job_folder(const std::string& path);

// Memory: that of the largest part, then of one step's statistics of all. Returns: false when
// `stop` was set. Throws: InputError: no part was captured, a part cannot be replayed, the folder
// is not the one that the options name by its hash; WriteError.
bool replay_parts(const PartsIndex& index, const PartsReplay& wanted, const JobWatch& watch,
                  const std::atomic<bool>& stop);

}  // namespace lockstep
