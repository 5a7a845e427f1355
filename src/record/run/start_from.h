// Where a run's first weights come from: a checkpoint of another run.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "src/core/tensor.h"

namespace lockstep {

// Parameters and buffers to start a run from: PATH[:LANE] names a checkpoint (RUN.state) and a lane
// of it, by default the reference. Masters if the lane has them; all in FP32, by name.
// Throws: InputError: no such file, damaged, no such lane (with the list of lanes).
std::map<std::string, Tensor> read_start(std::string_view text);
// A hash of names, shapes and bits, as 16 hexadecimal digits: RunOptions::start_hash.
std::string start_hash(const std::map<std::string, Tensor>& start);
// The checkpoint's path in PATH[:LANE]. Throws: InputError: no such form.
std::string checkpoint_of_start(std::string_view text);
// Whether `text` names a checkpoint of the run file `run_path`, by any path. A new run to that file
// deletes it. Throws: InputError unless it is PATH[:LANE].
bool starts_from_run(std::string_view text, const std::string& run_path);

}  // namespace lockstep
