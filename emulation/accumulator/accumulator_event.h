// What can happen at a step of a sum?
#pragma once

#include <cstdint>

namespace lockstep {

// Sticky events of one output's sum: a bit is set when any step did it. A step is what the
// accumulator rounds once: a product and its sum, or a block.
enum AccumulatorEvent : uint8_t {
  kStepToZero = 1,      // something nonzero entered and the rounded sum is zero, inexactly
  kStepToInfinity = 2,  // finite operands, infinite sum
  kStepInexact = 4,     // rounding or alignment dropped something
  kStepNan = 8,
};

}  // namespace lockstep
