// Rounds a whole optimizer state to its codes (emulation/format/state_codes.h), and measures it.
#pragma once

#include <span>

#include "emulation/format/state_codes.h"
#include "emulation/stats/tensor_stats.h"

namespace lockstep {

// In place. `stats` may be null; the values before the rounding are FP32's.
// Requires: codes.encodes(values.size()).
void round_state(std::span<float> values, const StateCodes& codes, bool is_signed,
                 TensorStats* stats);

}  // namespace lockstep
