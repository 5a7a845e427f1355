// Numbers to their compact form and back, see emulation/kernels/args/compact_form.h.
#pragma once

#include <cstdint>

#include "emulation/kernels/args/compact_form.h"
#include "src/core/chunks.h"

namespace lockstep {

// One range. `form` is not kBit.
void scalar_to_codes(CompactForm form, const float* from, int64_t count, uint16_t* to);
void scalar_from_codes(CompactForm form, const uint16_t* from, int64_t count, float* to);
// Requires: the range begins at a whole byte.
void scalar_to_bits(const int32_t* from, int64_t count, uint8_t* to);
void scalar_from_bits(const uint8_t* from, int64_t count, int32_t* to);

// A whole array, by all threads. Chunks begin at whole bytes.
static_assert(kElementGrain % 8 == 0);

template <void (*Range)(CompactForm, const float*, int64_t, uint16_t*)>
void compact(CompactForm form, const float* from, int64_t count, uint8_t* to) {
  auto* codes = reinterpret_cast<uint16_t*>(to);
  parallel_chunks(count, kElementGrain, [&](int64_t begin, int64_t end) {
    Range(form, from + begin, end - begin, codes + begin);
  });
}
template <void (*Range)(CompactForm, const uint16_t*, int64_t, float*)>
void expand(CompactForm form, const uint8_t* from, int64_t count, float* to) {
  const auto* codes = reinterpret_cast<const uint16_t*>(from);
  parallel_chunks(count, kElementGrain, [&](int64_t begin, int64_t end) {
    Range(form, codes + begin, end - begin, to + begin);
  });
}
template <void (*Range)(const int32_t*, int64_t, uint8_t*)>
void compact_mask(const int32_t* from, int64_t count, uint8_t* to) {
  parallel_chunks(count, kElementGrain, [&](int64_t begin, int64_t end) {
    Range(from + begin, end - begin, to + compact_bytes(CompactForm::kBit, begin));
  });
}
template <void (*Range)(const uint8_t*, int64_t, int32_t*)>
void expand_mask(const uint8_t* from, int64_t count, int32_t* to) {
  parallel_chunks(count, kElementGrain, [&](int64_t begin, int64_t end) {
    Range(from + compact_bytes(CompactForm::kBit, begin), end - begin, to + begin);
  });
}

}  // namespace lockstep
