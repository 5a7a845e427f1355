// A tensor of zeros and ones, one bit per element, for masks that are kept for long. The layout is
// that of numpy.packbits: row-major, the first element in the most significant bit of byte 0, the
// last byte filled with zeros.
//
//   byte 0           byte 1
//   0 1 2 3 4 5 6 7  8 9 10 ...     element
//   M             L  M              bit
#pragma once

#include <cstdint>
#include <vector>

#include "src/core/tensor.h"

namespace lockstep {

struct PackedBits {
  Shape shape;
  std::vector<uint8_t> bytes;  // packed_bytes(element_count(shape)) of them

  bool at(int64_t i) const {
    constexpr int64_t kByteBits = 8;
    return (bytes[static_cast<size_t>(i / kByteBits)] >> (kByteBits - 1 - i % kByteBits) & 1) != 0;
  }
  // Writes 0 and 1 into a kI32 tensor, 32 times as large. Reuses `out` if it has this shape.
  void unpack(Tensor& out) const;
};
// Bytes that `count` elements take.
int64_t packed_bytes(int64_t count);

}  // namespace lockstep
