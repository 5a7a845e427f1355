// The IDX file format:
//   00 00 08 D | D big-endian 32-bit extents, outermost first | one byte per element
// 08 is the type "unsigned byte", the only one the digit sets use; D is 3 for images, 1 for labels.
// Knows nothing of file names or splits. Source: Y. LeCun's MNIST page, "File formats".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/core/error.h"
#include "src/core/tensor.h"

namespace lockstep {

struct IdxArray {
  Shape shape;
  std::vector<uint8_t> values;
};

// Reads a plain or gzip file with `rank` extents. Problems (cannot open, wrong magic, truncated,
// too long, damaged gzip) go to `problems`, with the bytes expected and found; the values are then
// empty.
IdxArray read_idx(const std::string& path, size_t rank, ProblemList& problems);

// Gzip packs zeros a thousandfold: what comes out is bounded, too. MNIST's images have 47 MB.
inline constexpr size_t kMostUnpackedBytes = size_t{256} << 20;
// The whole file, unpacked if it is gzip; nothing if it could not be read, or has more than `most`
// bytes (see `problems`).
std::optional<std::vector<uint8_t>> read_maybe_gzip(const std::string& path, ProblemList& problems,
                                                    size_t most = kMostUnpackedBytes);

}  // namespace lockstep
