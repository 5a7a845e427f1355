// Optimizer states that are kept as narrow codes, in blocks with one FP32 scale each.
// A row of one table gives the block's size and the levels of both kinds of state. Also here: the
// rounding of one block, the definition. Knows nothing of update rules: the arithmetic between two
// encodings is the optimizer's.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "emulation/format/format.h"

namespace lockstep {

// value = level * scale. With `element`, the levels are that format's numbers and the scale is
// max(amax, kLeastScale) / max_finite; otherwise they lie in [-1, 1] and the scale is
// max(amax, kLeastScale). All in FP32.
struct StateCodes {
  std::string_view name, help, source;
  int block_size;
  // Smaller tensors stay FP32, and those that blocks do not divide.
  int64_t least_elements;
  int bits;
  const Format* element = nullptr;
  std::vector<float> signed_levels = {}, unsigned_levels = {};  // ascending; empty with `element`

  bool encodes(int64_t count) const { return count >= least_elements && count % block_size == 0; }
};

inline constexpr float kLeastStateScale = 1e-12F;

std::span<const StateCodes> state_codes();
const StateCodes& find_state_codes(std::string_view name);  // Throws: InputError, did-you-mean

// Each element of a block becomes the nearest level times the scale; a tie takes the upper level.
// `is_signed`: the state takes both signs (averages of gradients; not of squares).
// A NaN makes the whole block NaN. After an infinity: the same arithmetic, as in torchao, with NaN
// where 0 meets it.
void round_to_codes(std::span<float> block, const StateCodes& codes, bool is_signed);

}  // namespace lockstep
