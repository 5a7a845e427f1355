// The policy of a lane that runs on named hardware.
// `torch-autocast-fp16@hopper` is the policy with Hopper's accumulators. A sum of products goes
// through a unit of the hardware if that unit takes its factors; conversions follow the hardware's
// rules. Knows nothing of engines; the software engine computes it.
#pragma once

#include <span>
#include <string>

#include "src/policy/policy.h"

namespace lockstep {

// Sets policy.hardware and what follows from it: casts to BF16 flush if the hardware's conversion
// does; TF32 factors are truncated unless the policy says how they are formed.
void apply_hardware(Policy& policy, const Hardware& hardware);

// The accumulator of one sum of products, and the formats in which it reads the factors.
struct AccumulatorChoice {
  const Accumulator* accumulator;
  const Format *a, *b;
  std::string problem;  // why there is none, or ""
};

// `wanted`: named by the policy or, with `by_rule`, by one of its rules.
//   a unit, by the policy   serves the sums whose factors it takes; ignored for the others
//   a unit, by a rule       must take the factors
//   a unit of other hardware than the lane's   is a problem
//   a chain, by a rule      is kept on any hardware
//   otherwise, on hardware  its first unit for these factors and this register format; with an FP32
//                           factor the sum is fp32_fused here too; narrower factors without a
//                           unit are a problem, as is a chain other than the fused FP32 or
//                           FP16 one
AccumulatorChoice choose_accumulator(const Policy& policy, const Accumulator& wanted, bool by_rule,
                                     const Format& a, const Format& b);

}  // namespace lockstep
