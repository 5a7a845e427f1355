// Rounds a whole optimizer state to its codes (emulation/format/state_codes.h), and measures it.
#pragma once

#include <cstdint>

#include "emulation/format/state_codes.h"
#include "emulation/stats/tensor_stats.h"

namespace lockstep {

// See CompactKernels.
void round_state(float* values, int64_t count, const StateCodes& codes, bool is_signed,
                 TensorStats* stats);

}  // namespace lockstep
