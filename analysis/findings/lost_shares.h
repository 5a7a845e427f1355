// Finds what a lane lost without any overflow.
// Shares of energy (sums of squares) that rounding took, averaged over the steps:
//
//   underflow      sum (after - before)^2 / sum before^2 where values became zero. Of a gradient
//                  also the error share of the weight gradient made from it beyond that of its
//                  other operands, in steps that the lane and the reference begin with the same
//                  weights, where underflow is at least half of what is wrong with the gradient
//   storage        underflow where a weight, input, buffer or constant is stored, in steps in which
//                  the result of an op that reads it is wrong by kEnergyLimit: a lost eps next to
//                  large numbers does no harm
//   accumulators   the same for a sum, from the error that it adds to that of the operands, in
//                  steps with the same weights
//   lost updates   sum dw^2 over updates that moved no weight / sum dw^2, for each parameter. Kahan
//                  summation and stochastic rounding lose no update in the long run. A learning
//                  rate that ends low: the same of the last steps alone, is_tail
//   saturation     the loss of energy where values were cut to the largest number
#pragma once

#include <vector>

#include "analysis/findings/finding.h"
#include "analysis/findings/share_tally.h"
#include "src/policy/policy.h"

namespace lockstep {

inline constexpr double kLostUpdateLimit = 0.1;  // of a parameter's update energy: a judgement

std::vector<Finding> find_lost_shares(const ShareTally& tally, const Policy& policy);

}  // namespace lockstep
