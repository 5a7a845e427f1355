// Runs another program and waits for it. Knows nothing of what it does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

enum class ShowErrors : uint8_t { kNo, kYes };

// Its standard output is thrown away. `argv[0]`: a path or a name on the PATH.
// Returns: the exit status; 128 + n if signal n ended it. Throws: InputError if it cannot be
// started.
int run_program(const std::vector<std::string>& argv, ShowErrors errors);

// Whether the file is a program that this machine can start.
bool is_program(const std::string& path);

}  // namespace lockstep
