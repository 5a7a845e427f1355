// Makes the run that a run file's options describe, to run it again.
#pragma once

#include <optional>

#include "src/train/lockstep.h"
#include "src/train/run_options.h"

namespace lockstep {

// Throws: InputError: the capture or the weights that the run began with are gone, or the capture
// has changed (changed weights are not looked for).
void make_recorded_run(std::optional<LockstepRun>& run, RunOptions options);

}  // namespace lockstep
