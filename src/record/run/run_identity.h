// Checks that a run is the one that its file was started with, and lists the differences.
#pragma once

#include <string>
#include <vector>

#include "src/record/run/run_reader.h"
#include "src/train/lockstep.h"
#include "src/train/observer.h"

namespace lockstep {

// A hash of graph, options and policies; ties checkpoints to their run file.
std::string run_hash(const RunDescription& description);

// Differences between a run file and `now`, one line each; empty when equal.
std::vector<std::string> run_differences(const RunFile& file, const RunDescription& now);

}  // namespace lockstep
