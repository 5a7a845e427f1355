// Cuts arrays into chunks for the threads, and chooses the instruction set.
#include "emulation/kernels/compact.h"

#include <bit>

#include "emulation/kernels/simd/compact.h"
#include "emulation/kernels/simd/targets.h"
#include "src/core/chunks.h"

namespace lockstep {
namespace {

constexpr int64_t kByteBits = 8;
constexpr int kHalfBits = 16;

const Format& fp16() {
  static const Format& format = find_format("fp16");
  return format;
}

void scalar_compact_floats(CompactForm form, const float* from, int64_t count, uint16_t* to) {
  for (int64_t i = 0; i < count; ++i) {
    if (form == CompactForm::kFp16) {
      to[i] = static_cast<uint16_t>(encode(from[i], fp16()));
    } else {
      to[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(from[i]) >> kHalfBits);
    }
  }
}

void scalar_expand_floats(CompactForm form, const uint16_t* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    if (form == CompactForm::kFp16) {
      to[i] = static_cast<float>(decode(from[i], fp16()));
    } else {
      to[i] = std::bit_cast<float>(uint32_t{from[i]} << kHalfBits);
    }
  }
}

// The first number is in the lowest bit of the first byte.
void scalar_compact_bits(const int32_t* from, int64_t count, uint8_t* to) {
  for (int64_t i = 0; i < count; ++i) {
    if (i % kByteBits == 0) to[i / kByteBits] = 0;
    to[i / kByteBits] |= static_cast<uint8_t>((from[i] != 0 ? 1 : 0) << i % kByteBits);
  }
}

void scalar_expand_bits(const uint8_t* from, int64_t count, int32_t* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = from[i / kByteBits] >> i % kByteBits & 1;
}

const CompactFunctions& functions() {
  static const CompactFunctions kScalar = {scalar_compact_floats, scalar_expand_floats,
                                           scalar_compact_bits, scalar_expand_bits};
  static const CompactFunctions& chosen = cpu_has_avx512() ? avx512_compact_functions()
                                          : cpu_has_avx2() ? avx2_compact_functions()
                                                           : kScalar;
  return chosen;
}

}  // namespace

std::optional<CompactForm> compact_form(const Format& format) {
  if (contains(find_format("bf16"), format)) return CompactForm::kTopHalf;
  if (contains(fp16(), format)) return CompactForm::kFp16;
  return std::nullopt;
}

int64_t compact_bytes(CompactForm form, int64_t count) {
  if (form == CompactForm::kBit) return (count + kByteBits - 1) / kByteBits;
  return count * static_cast<int64_t>(sizeof(uint16_t));
}

void compact(CompactForm form, const float* from, int64_t count, uint8_t* to) {
  parallel_chunks(count, kElementGrain, [&](int64_t begin, int64_t end) {
    uint8_t* at = to + compact_bytes(form, begin);
    functions().compact_floats(form, from + begin, end - begin, reinterpret_cast<uint16_t*>(at));
  });
}

void expand(CompactForm form, const uint8_t* from, int64_t count, float* to) {
  parallel_chunks(count, kElementGrain, [&](int64_t begin, int64_t end) {
    const uint8_t* at = from + compact_bytes(form, begin);
    functions().expand_floats(form, reinterpret_cast<const uint16_t*>(at), end - begin, to + begin);
  });
}

// Chunks begin at whole bytes.
static_assert(kElementGrain % kByteBits == 0);

void compact(const int32_t* from, int64_t count, uint8_t* to) {
  parallel_chunks(count, kElementGrain, [&](int64_t begin, int64_t end) {
    functions().compact_bits(from + begin, end - begin, to + begin / kByteBits);
  });
}

void expand(const uint8_t* from, int64_t count, int32_t* to) {
  parallel_chunks(count, kElementGrain, [&](int64_t begin, int64_t end) {
    functions().expand_bits(from + begin / kByteBits, end - begin, to + begin);
  });
}

}  // namespace lockstep
