// lockstep verify CAPTURE: checks that the import is faithful. One line per gate, and the exit
// code.
#pragma once

#include <string>

namespace lockstep {

// The result also goes to a file next to the capture, and to `json` unless that is empty.
// Throws: InputError: not a capture, damaged, ...
int verify_capture_file(const std::string& path, const std::string& json);

}  // namespace lockstep
