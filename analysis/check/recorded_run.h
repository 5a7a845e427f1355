// Makes the run that a run file's options describe, to run it again.
#pragma once

#include <optional>

#include "src/train/lockstep.h"
#include "src/train/run_options.h"

namespace lockstep {

// Throws: InputError: what the run began with is gone or has changed.
void make_recorded_run(std::optional<LockstepRun>& run, RunOptions options);

}  // namespace lockstep
