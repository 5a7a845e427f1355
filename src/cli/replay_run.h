// What does `lockstep replay` do once its options are read?
// Makes the run, trains the lanes, records them and prints the summary.
#pragma once

#include "src/cli/replay_arguments.h"

namespace lockstep {

// Both return an exit code. `problems`: what the command line has been found to have so far; every
// other mistake joins it before a file is touched.
int start_run(ReplayArgs& args, ProblemList& problems);
// What a resumed run does is what its file says: `args` has the machine's options alone.
int resume_run(const ReplayArgs& args, const ProblemList& problems);

}  // namespace lockstep
