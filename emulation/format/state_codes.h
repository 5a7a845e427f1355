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
// max(amax, kLeastStateScale) / max_finite; otherwise they lie in [-1, 1] and the scale is
// max(amax, kLeastStateScale). All in FP32.
// With `grid`, the level is that of a table: v = x (1 / amax) goes to the place i = floor((v + 1)
// (grid / 2) + 1/2), which has the level nearest to 2 i / grid - 1, all in FP32. No level is nearer
// to 0 than the place there. The scale is amax, however small; a NaN has the lowest level.
struct StateCodes {
  std::string_view name, help, source;
  int block_size;
  int64_t least_elements;  // smaller tensors stay FP32
  int bits;
  const Format* element = nullptr;
  std::vector<float> signed_levels = {}, unsigned_levels = {};  // ascending; or empty
  int grid = 0;                                                 // 0: the nearest level itself
  bool takes_rest = false;  // the last block may be shorter; false: such tensors stay FP32
  std::vector<float> signed_places = {}, unsigned_places = {};  // of the grid: their levels

  bool encodes(int64_t count) const {
    return count >= least_elements && (takes_rest || count % block_size == 0);
  }
};

inline constexpr float kLeastStateScale = 1e-12F;

std::span<const StateCodes> state_codes();
const StateCodes& find_state_codes(std::string_view name);  // Throws: InputError, did-you-mean

// Each element of a block becomes the nearest level times the scale; a tie takes the upper level.
// `is_signed`: the state takes both signs (averages of gradients; not of squares).
// Without a grid, a NaN makes the whole block NaN. After an infinity: the same arithmetic, as in
// torchao, with NaN where 0 meets it.
void round_to_codes(std::span<float> block, const StateCodes& codes, bool is_signed);

}  // namespace lockstep
