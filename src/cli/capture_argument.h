// When does MODEL on a command line mean a capture, and which options has it then no use for?
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "src/core/error.h"

namespace lockstep {

// A built-in model is no file; whatever else there is under that name must be a capture, and so
// must what is written like a file's name.
bool is_capture(const std::string& model);

// A problem for each of `options` that is given: the capture says that itself, and beside it the
// option would change nothing without a word.
void refuse_captured(const std::string& capture, const std::vector<CLI::Option*>& options,
                     ProblemList& problems);

}  // namespace lockstep
