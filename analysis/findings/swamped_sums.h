// Finds sums in which small terms had no effect.
//
//   products       sum (computed - exact)^2 / sum exact^2 of the sampled sums of products
//   other sums     the same of all outputs of an op that sums by [reduce] or in its output's format
//   plain sums     sum (after - before)^2 of a + b / the smaller of sum a^2 and sum b^2
//   additions      sum d^2 over what was added in vain / sum d^2, d being what a step adds to a
//                  running statistic, or a micro-batch to the gradients. A statistic must be wrong
//                  by kEnergyLimit, too, and by kTwinTimes what one ulp does to it; or be left
//                  behind: (distance from the reference)^2 / (additions sum d^2 of the reference),
//                  which is 1 where all d are equal and 1/additions where they are noise.
#pragma once

#include <vector>

#include "analysis/findings/finding.h"
#include "analysis/findings/share_tally.h"
#include "src/policy/policy.h"

namespace lockstep {

// The least share that counts as swamped, a judgement: of the addends of a sum of products (which
// must also have lost kEnergyLimit), of a plain sum's smaller operand, of what was added to a
// stored value.
inline constexpr double kSwampedLimit = 0.1;

// The least share of its way by which a statistic that takes none of its additions is left
// behind. Judgements: noise stays at one over the additions.
inline constexpr double kLeftBehind = 0.5, kNoneTaken = 0.9;

// The least error share, in units of a one-ulp twin's: four times as far from the reference. A
// judgement.
inline constexpr double kTwinTimes = 16;

// All by site id, may be empty. `of_twin`: error shares of a one-ulp twin in the last step.
std::vector<Finding> find_swamped_sums(const ShareTally& tally, const Policy& policy,
                                       const std::vector<AccumulatorHealth>& sums,
                                       const std::vector<AccumulatorHealth>& of_reference,
                                       const std::vector<double>& of_twin = {});

}  // namespace lockstep
