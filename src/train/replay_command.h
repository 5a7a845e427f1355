// Writes the command that repeats a run.
#pragma once

#include <string>

#include "src/train/run_options.h"

namespace lockstep {

// "lockstep replay lenet --lanes fp32,tf32 --steps 20 -o run.h5": every option that is not at its
// default. What the machine decides (threads, kernels, files of policies) is left to it.
std::string replay_command(const RunOptions& options, const std::string& output);

}  // namespace lockstep
