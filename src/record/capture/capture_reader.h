// How does a capture file become a Capture? (docs/capture-file.md, src/capture/capture.h)
#pragma once

#include <cstdint>
#include <string>

#include "src/capture/capture.h"

namespace lockstep {

// What a capture is read for. A replay needs nothing of the verify steps' reference gradients and
// states, which are most of the file of a large network: they are not read.
enum class CaptureUse : uint8_t { kReplay, kVerify };

// Checks the file's block, reads its HDF5 data in a child process with limits, and validates what
// it reads. Throws: InputError with every problem: not a capture, damaged, truncated, newer, or
// content that is missing, of another type or shape, or that does not fit together.
Capture read_capture(const std::string& path, CaptureUse use);

}  // namespace lockstep
