// In which sums had small terms no effect?
//
//   products       sum (computed - exact)^2 / sum exact^2 of the sampled sums of products
//   plain sums     sum (after - before)^2 of a + b / the smaller of sum a^2 and sum b^2
//   additions      sum d^2 over what was added without changing the stored value / sum d^2:
//   batches'
//                  part of running statistics, micro-batches' gradients
#pragma once

#include <vector>

#include "analysis/findings/finding.h"
#include "analysis/findings/share_tally.h"
#include "src/policy/policy.h"

namespace lockstep {

// A judgement. Of the addends of a sum of products, and kEnergyLimit of the sum; of a plain sum's
// smaller operand; of what was added to a stored value.
inline constexpr double kSwampedLimit = 0.1;

// `sums` and `of_reference` by site id, may be empty.
std::vector<Finding> find_swamped_sums(const ShareTally& tally, const Policy& policy,
                                       const std::vector<AccumulatorHealth>& sums,
                                       const std::vector<AccumulatorHealth>& of_reference);

}  // namespace lockstep
