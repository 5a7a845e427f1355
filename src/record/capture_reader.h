// How does a capture file become a Capture? (docs/capture-file.md, src/train/captured/capture.h)
#pragma once

#include <string>

#include "src/train/captured/capture.h"

namespace lockstep {

// Checks the file's block, reads its HDF5 data in a child process with limits, and validates all of
// it. Throws: InputError with every problem: not a capture, damaged, truncated, newer, or content
// that is missing, of another type or shape, or that does not fit together.
Capture read_capture(const std::string& path);

}  // namespace lockstep
