// lockstep verify RUN: whether a run file and its checkpoints are as they were written.
#pragma once

#include <string>

namespace lockstep {

// Prints one line per seed and checkpoint, and one per damaged row. Returns: the exit code.
// Throws: InputError: not a run file, or damaged so that it cannot be read.
int verify_run_file(const std::string& path);

}  // namespace lockstep
