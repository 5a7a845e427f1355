// What `lockstep replay` says of a run: notes before its first step, the summary after its last, a
// write that failed.
#pragma once

#include <cstdint>
#include <string>

#include "src/record/run/run_writer.h"
#include "src/train/run_description.h"

namespace lockstep {

// "seed 2/3"; nothing if there is one seed.
std::string seed_text(const RunOptions& first, uint64_t seed);
void print_run_notes(const RunDescription& run);
// The summary, or how to continue.
void print_run_end(const std::string& path, bool finished, bool quiet);
// Returns the exit code.
int report_write_error(const WriteError& error, const std::string& path);

}  // namespace lockstep
