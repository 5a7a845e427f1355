// `lockstep replay` after its options are read: makes the run, trains the lanes, records them and
// prints the summary.
#pragma once

#include <string>

#include "src/cli/arguments/replay_arguments.h"
#include "src/record/run/run_writer.h"
#include "src/train/run_description.h"

namespace lockstep {

// Both return an exit code. `problems`: those found in the command line so far; every other mistake
// is added before any file is touched.
int start_run(ReplayArgs& args, ProblemList& problems);
// The end of a run in its file: the summary, or how to continue.
void print_run_end(const std::string& path, bool finished, bool quiet);
int report_write_error(const WriteError& error, const std::string& path);
void print_run_notes(const RunDescription& run);
// A resumed run takes its options from its file; `args` holds only those of the machine.
int resume_run(const ReplayArgs& args, const ProblemList& problems);

}  // namespace lockstep
