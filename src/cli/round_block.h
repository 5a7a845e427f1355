// What does one block of a block format hold?
// Shows a block: its largest magnitude, its scale, and each element's bits, value and error.
#pragma once

#include <vector>

#include "emulation/format/block_format.h"

namespace lockstep {

struct BlockQuestion {
  std::vector<float> values;  // at most a block of them
  const BlockFormat* format = nullptr;
  Rounding rounding = Rounding::kNearestEven;
  uint32_t random = 0;     // of every element, for stochastic rounding
  float tensor_scale = 0;  // 0: from the values, as if they were the tensor
};
void print_block(const BlockQuestion& question);

}  // namespace lockstep
