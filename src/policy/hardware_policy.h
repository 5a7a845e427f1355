// What changes in a policy when a lane runs on named hardware?
// `torch-autocast-fp16@hopper` is the policy with Hopper's accumulators: every sum of products
// whose factors a unit of the hardware takes goes through that unit, and conversions follow the
// hardware's rules. Knows nothing of engines; the software engine computes it.
#pragma once

#include <span>
#include <string>

#include "src/policy/policy.h"

namespace lockstep {

// Sets policy.hardware and what it implies: casts to BF16 flush where the hardware's conversion
// does, TF32 factors are truncated unless the policy says how they are formed.
void apply_hardware(Policy& policy, const Hardware& hardware);

// The accumulator of one sum of products and the formats its factors are decoded in.
struct AccumulatorChoice {
  const Accumulator* accumulator;
  const Format *a, *b;
  std::string problem;  // why there is none, or ""
};

// `wanted`: by the policy or, `by_rule`, by one of its rules.
//   a unit, by the policy   serves the sums whose factors it takes; elsewhere as if none were named
//   a unit, by a rule       must take the factors
//   a unit of other hardware than the lane's   is a problem
//   a chain, by a rule      stays, on any hardware
//   otherwise, on hardware  its first unit for these factors and this register format; with an FP32
//                           factor the sum is fp32_fused there, too; narrower factors without a
//                           unit are a problem, and so is a chain that is not the fused FP32 or
//                           FP16 one
AccumulatorChoice choose_accumulator(const Policy& policy, const Accumulator& wanted, bool by_rule,
                                     const Format& a, const Format& b);

}  // namespace lockstep
