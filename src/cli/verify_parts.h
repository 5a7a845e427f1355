// lockstep verify FOLDER: every part of a folder that lockstep_capture.Parts wrote, and the
// gradients of all ranks together.
#pragma once

#include <string>

namespace lockstep {

// A result next to each part, as of any capture; all of them to `json` unless that is empty.
// Returns the exit code. Throws: InputError: the folder is damaged, a part cannot be read.
int verify_parts_folder(const std::string& folder, const std::string& json);

}  // namespace lockstep
