// Tells whether MODEL on a command line is a capture, and rejects options that a capture ignores.
#pragma once

#include <span>
#include <string>

#include "src/cli/arguments/arguments.h"
#include "src/core/error.h"

namespace lockstep {

// True for an existing file, or anything written like a file name, that is not the name of a
// built-in model.
bool is_capture(const std::string& model);

// "lenet", "mine" of "runs/mine.lscap.h5": what files made from a model or capture are named after.
std::string stem_of(const std::string& model);

// Adds a problem for each of `options` that is given: the capture defines that value, so the option
// would be ignored silently.
void refuse_captured(const std::string& capture, std::span<const OptionOnLine> options,
                     ProblemList& problems);

}  // namespace lockstep
