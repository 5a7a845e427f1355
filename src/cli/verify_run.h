// lockstep verify RUN: whether a run file and its checkpoints are as they were written.
#pragma once

#include <string>

#include "src/record/run/run_reader.h"

namespace lockstep {

// Prints one line per seed and checkpoint, and one per damaged row. Returns: the exit code.
// Throws: InputError: not a run file, or damaged so that it cannot be read.
int verify_run_file(const std::string& path);

// Says on standard error that damage of this file would go unnoticed, if it would.
void note_missing_checksums(const RunFile& run);

}  // namespace lockstep
