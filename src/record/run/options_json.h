// The options of a run as JSON: the run file's `options` attribute, from which a run can be
// resumed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/train/run_options.h"

namespace lockstep {

// Throws: InputError if a name is not UTF-8.
std::string options_to_json(const RunOptions& options);
// Throws: InputError on anything that options_to_json does not write.
RunOptions options_from_json(std::string_view json);
// "batch: 64 in the file, 32 now", one per option that differs.
std::vector<std::string> option_differences(const RunOptions& file, const RunOptions& now);

}  // namespace lockstep
