// Shows one block of a block format: its largest magnitude, its scale, and each element's bits,
// value and error.
#pragma once

#include <vector>

#include "emulation/format/block_format.h"

namespace lockstep {

struct BlockQuestion {
  std::vector<float> values;  // at most one block
  const BlockFormat* format = nullptr;
  Rounding rounding = Rounding::kNearestEven;
  uint32_t random = 0;     // for stochastic rounding, the same for every element
  float tensor_scale = 0;  // 0: computed from the values, as if they were the tensor
};
void print_block(const BlockQuestion& question);

}  // namespace lockstep
