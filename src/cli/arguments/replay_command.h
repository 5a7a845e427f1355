// Writes the command that repeats a run.
#pragma once

#include <string>

#include "src/train/run_options.h"

namespace lockstep {

// The replay of `o` with other lanes: every option that is not at its default, a few to a line.
std::string replay_command(const RunOptions& o, const std::string& lanes,
                           const std::string& output);

}  // namespace lockstep
