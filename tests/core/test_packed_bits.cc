// Zeros and ones in one bit each: the order of numpy.packbits, packed and unpacked.
#include "src/core/packed_bits.h"

#include <doctest/doctest.h>

namespace lockstep {

TEST_CASE("packed bits: the first element is the most significant bit") {
  const PackedBits bits{{2, 5}, {0b1011'0000, 0b0100'0000}};
  const std::vector<int32_t> expected = {1, 0, 1, 1, 0, 0, 0, 0, 0, 1};
  Tensor out;
  bits.unpack(out);
  CHECK(out.same_bits(Tensor::from<int32_t>({2, 5}, expected)));
  for (size_t i = 0; i < expected.size(); ++i) {
    CHECK(bits.at(static_cast<int64_t>(i)) == (expected[i] != 0));
  }
}

TEST_CASE("packed bits: bytes are rounded up") {
  for (const auto& [count, bytes] : {std::pair{0, 0}, {1, 1}, {8, 1}, {9, 2}, {16, 2}}) {
    CHECK(packed_bytes(count) == bytes);
  }
}

TEST_CASE("packed bits: a tensor of the same shape is reused, any other is replaced") {
  const PackedBits ones{{9}, {0xff, 0x80}}, none{{9}, {0, 0}}, one{{}, {0x80}};
  Tensor out;
  ones.unpack(out);
  const void* const memory = out.raw();
  none.unpack(out);
  CHECK(out.raw() == memory);
  CHECK(out.same_bits(Tensor({9}, Container::kI32)));
  out = Tensor({9}, Container::kF32);
  ones.unpack(out);
  CHECK(out.same_bits(Tensor::from<int32_t>({9}, std::vector<int32_t>(9, 1))));
  one.unpack(out);
  CHECK(out.same_bits(Tensor::from<int32_t>({}, {1})));
}

}  // namespace lockstep
