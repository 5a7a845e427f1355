// Reads a capture file (docs/capture-file.md) into a Capture (src/capture/capture.h).
// Texts with control characters are refused, not escaped: two names could become one, and every
// writer would have to remember to escape.
#pragma once

#include <cstdint>
#include <string>

#include "src/capture/capture.h"

namespace lockstep {

// The use of a capture. A replay does not need the reference gradients and states of verify steps,
// most of the file of a large network, so they are not read.
enum class CaptureUse : uint8_t { kReplay, kVerify };

// Checks the file's block, reads its HDF5 data in a child process with limits, and validates them.
// With kVerify, Capture::start is empty if a verify step begins there.
// Throws: InputError with every problem: less memory is free than its tensors need, not a capture,
// damaged, truncated, newer, or content that is missing, has another type or shape, or is
// inconsistent.
Capture read_capture(const std::string& path, CaptureUse use);

}  // namespace lockstep
