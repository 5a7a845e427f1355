// How are numbers kept that nothing reads for a while?
// Values of a format that FP16 or BF16 contains take 16 bits, zeros and ones take one. Exact in
// both directions: infinities, signed zeros and the one NaN of every kernel included.
#pragma once

#include <cstdint>
#include <optional>

#include "emulation/format/format.h"

namespace lockstep {

enum class CompactForm : uint8_t {
  kFp16,     // the codes of FP16
  kTopHalf,  // the upper 16 bits of a float, which are BF16's code
  kBit,      // 0 or 1; of integers: whether it is not zero
};

// The form that holds every value of `format`; nothing if none does.
std::optional<CompactForm> compact_form(const Format& format);
// Bytes that `count` numbers take.
int64_t compact_bytes(CompactForm form, int64_t count);

// `to` holds compact_bytes(form, count). Requires: values of a format with this form; not kBit.
void compact(CompactForm form, const float* from, int64_t count, uint8_t* to);
void expand(CompactForm form, const uint8_t* from, int64_t count, float* to);
// Of kBit.
void compact(const int32_t* from, int64_t count, uint8_t* to);
void expand(const uint8_t* from, int64_t count, int32_t* to);

}  // namespace lockstep
