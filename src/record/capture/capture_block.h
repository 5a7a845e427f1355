// The block of bytes before a capture's HDF5 data (docs/capture-file.md): magic, version, length
// and SHA-256 of the rest. It is checked before HDF5 opens the file, so that chance damage is
// reported as damage.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

struct CaptureBlock {
  uint64_t size = 0;    // of the block: 512 or a larger power of two
  uint64_t length = 0;  // of the HDF5 data after it
  std::string sha256;   // of these data, 64 hexadecimal digits
};

// Whether the file begins like a capture. Also false if it cannot be read.
bool looks_like_capture(const std::string& path);

// Throws: InputError: unreadable, not a capture, newer version, truncated, or changed later.
CaptureBlock check_capture_block(const std::string& path);

}  // namespace lockstep
