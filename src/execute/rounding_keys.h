// Keys of stochastic rounding: the run's seed, the policy's stream, the step, and the site of the
// value.
#pragma once

#include <cstdint>

namespace lockstep {

// The common part of the keys of one forward and backward pass.
struct ExecutionKey {
  uint64_t seed = 0;
  uint32_t stream = 0;  // the policy's
  uint64_t step = 0;
};

}  // namespace lockstep
