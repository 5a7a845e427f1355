// Compares the memory that a run's lanes will need with what is free, before any lane has a tensor
// of a weight's size.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/graph/ir.h"
#include "src/train/run_description.h"

namespace lockstep {

struct LaneMemory {
  std::string lane;
  int64_t bytes = 0;  // of its tensors, in a step
};

// Returns: a warning where it is close, else "". Throws: InputError where the tensors alone take
// more than is free. `free`: see free_memory(); 0: not known.
std::string check_run_memory(const std::vector<LaneMemory>& lanes, int64_t parameters,
                             bool is_capture, int64_t free);

int64_t parameter_count(const Graph& graph);

}  // namespace lockstep
