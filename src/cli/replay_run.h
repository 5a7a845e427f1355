// `lockstep replay` after its options are read: makes the run, trains the lanes, records them and
// prints the summary.
#pragma once

#include "src/cli/arguments/replay_arguments.h"

namespace lockstep {

// Both return an exit code. `problems`: those found in the command line so far; every other mistake
// is added before any file is touched.
int start_run(ReplayArgs& args, ProblemList& problems);
// A resumed run takes its options from its file; `args` holds only those of the machine.
int resume_run(const ReplayArgs& args, const ProblemList& problems);

}  // namespace lockstep
