// Checks that a run is the one that its file was started with, and lists the differences.
#pragma once

#include <hdf5.h>

#include <string>
#include <vector>

#include "src/train/lockstep.h"
#include "src/train/observer.h"

namespace lockstep {

// A hash of graph, options and policies; ties checkpoints to their run file.
std::string run_hash(const RunDescription& description);

// Differences between a run file's root group and `now`, one line each; empty when equal.
// Throws: hdf5::Error.
std::vector<std::string> run_differences(hid_t root, const RunDescription& now);

// Lane names in run order (not escaped). Throws: hdf5::Error.
std::vector<std::string> lane_names(hid_t root);

}  // namespace lockstep
