// See compact_form.h.
#include "emulation/kernels/args/compact_form.h"

#include "src/core/packed_bits.h"

namespace lockstep {

std::optional<CompactForm> compact_form(const Format& format) {
  static const Format &fp16 = find_format("fp16"), &bf16 = find_format("bf16");
  if (contains(bf16, format)) return CompactForm::kTopHalf;
  if (contains(fp16, format)) return CompactForm::kFp16;
  return std::nullopt;
}

int64_t compact_bytes(CompactForm form, int64_t count) {
  constexpr int64_t kCodeBytes = 2;
  return form == CompactForm::kBit ? packed_bytes(count) : count * kCodeBytes;
}

}  // namespace lockstep
