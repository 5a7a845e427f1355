// See compact.h.
#include "emulation/kernels/scalar/rounding/compact.h"

#include <bit>

namespace lockstep {
namespace {

constexpr int kHalfBits = 16;
constexpr int64_t kByteBits = 8;

const Format& fp16() {
  static const Format& format = find_format("fp16");
  return format;
}

}  // namespace

void scalar_to_codes(CompactForm form, const float* from, int64_t count, uint16_t* to) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] = form == CompactForm::kFp16
                ? static_cast<uint16_t>(encode(from[i], fp16()))
                : static_cast<uint16_t>(std::bit_cast<uint32_t>(from[i]) >> kHalfBits);
  }
}

void scalar_from_codes(CompactForm form, const uint16_t* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] = form == CompactForm::kFp16 ? static_cast<float>(decode(from[i], fp16()))
                                       : std::bit_cast<float>(uint32_t{from[i]} << kHalfBits);
  }
}

void scalar_to_bits(const int32_t* from, int64_t count, uint8_t* to) {
  for (int64_t i = 0; i < count; ++i) {
    if (i % kByteBits == 0) to[i / kByteBits] = 0;
    to[i / kByteBits] |= static_cast<uint8_t>((from[i] != 0 ? 1 : 0) << i % kByteBits);
  }
}

void scalar_from_bits(const uint8_t* from, int64_t count, int32_t* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = from[i / kByteBits] >> i % kByteBits & 1;
}

}  // namespace lockstep
