// Compact forms of numbers that nothing reads for a while.
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
  kBit,      // of integers: whether it is not 0; the first is in the lowest bit of byte 0
};

// The form that holds every value of `format`; nothing if none does.
std::optional<CompactForm> compact_form(const Format& format);
// Bytes that `count` numbers take.
int64_t compact_bytes(CompactForm form, int64_t count);

}  // namespace lockstep
