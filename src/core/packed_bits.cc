#include "src/core/packed_bits.h"

namespace lockstep {

int64_t packed_bytes(int64_t count) {
  constexpr int64_t kByteBits = 8;
  return (count + kByteBits - 1) / kByteBits;
}

void PackedBits::unpack(Tensor& out) const {
  if (out.empty() || out.shape() != shape || out.container() != Container::kI32) {
    out = Tensor(shape, Container::kI32);
  }
  const auto values = out.as<int32_t>();
  for (size_t i = 0; i < values.size(); ++i) values[i] = at(static_cast<int64_t>(i)) ? 1 : 0;
}

}  // namespace lockstep
