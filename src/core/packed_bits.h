// How is a tensor of zeros and ones kept that may wait long for its use?
// One bit an element, as numpy.packbits has it: row-major, the first element in the most
// significant bit of byte 0, the last byte filled with zeros.
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
  // As 0 and 1 in a kI32 tensor, 32 times as large; one of this shape is written into.
  void unpack(Tensor& out) const;
};
// Bytes that so many elements take.
int64_t packed_bytes(int64_t count);

}  // namespace lockstep
