// Is this the run that the file was started with? What must be equal, and the list of what is not.
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
