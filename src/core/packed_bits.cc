#include "src/core/packed_bits.h"

namespace lockstep {

int64_t packed_bytes(int64_t count) {
  constexpr int64_t kByteBits = 8;
  return (count + kByteBits - 1) / kByteBits;
}

Tensor PackedBits::unpacked() const {
  Tensor out(shape, Container::kI32);
  const auto values = out.as<int32_t>();
  for (size_t i = 0; i < values.size(); ++i) values[i] = at(static_cast<int64_t>(i)) ? 1 : 0;
  return out;
}

}  // namespace lockstep
