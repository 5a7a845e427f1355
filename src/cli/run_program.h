// Runs another program and waits for it. Knows nothing of what it does.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

// Its standard output is thrown away, its errors are shown. `argv[0]`: a path or a name on the
// PATH. Returns: the exit status; 128 + n if signal n ended it. Throws: InputError if it cannot be
// started.
int run_program(const std::vector<std::string>& argv);

// Whether the file is a program that this machine can start.
bool is_program(const std::string& path);

}  // namespace lockstep
