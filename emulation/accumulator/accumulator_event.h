// The events that a step of a sum can cause. They count once for each output, whatever the number
// of steps: counts of steps would need more time than the sum itself.
#pragma once

#include <cstdint>

namespace lockstep {

// Sticky events of one output's sum: any step can set a bit. A step ends with one rounding of the
// accumulator: a product and its sum, or a block.
enum AccumulatorEvent : uint8_t {
  kStepToZero = 1,      // a nonzero term entered and the sum rounded to zero, inexactly
  kStepToInfinity = 2,  // finite operands, infinite sum
  kStepInexact = 4,     // rounding or alignment dropped something
  kStepNan = 8,
};

}  // namespace lockstep
