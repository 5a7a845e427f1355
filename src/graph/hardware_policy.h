// What changes in a policy when a lane runs on named hardware?
// `torch-autocast-fp16@hopper` is the policy with Hopper's accumulators: every sum of products
// whose factors a unit of the hardware takes goes through that unit, and conversions follow the
// hardware's rules. Knows nothing of engines; the software engine computes it.
#pragma once

#include <span>
#include <string>

#include "src/graph/policy.h"

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

// `wanted`: by the policy or, `by_rule`, by one of its rules. An accumulator that takes only some
// formats serves the sums whose factors it takes; elsewhere the sum is fp32_fused, unless a rule
// asked for it by name, which is a problem. On hardware: its unit for these factors; FP32 factors
// are summed in plain FP32 arithmetic there, too, narrower ones without a unit are a problem.
AccumulatorChoice choose_accumulator(const Policy& policy, const Accumulator& wanted, bool by_rule,
                                     const Format& a, const Format& b);

}  // namespace lockstep
