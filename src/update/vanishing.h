// Which of an optimizer's numbers are lost in the formats that a policy computes in?
// Said before a run, from the numbers alone: what gradients do to them is measured (updates/).
#pragma once

#include <string>
#include <vector>

#include "src/policy/policy.h"
#include "src/update/parameter_groups.h"

namespace lockstep {

// One text per number and parameter group, for parameters in the policy's weight format:
//   eps            rounds to 0 where it is added: sqrt(v) = 0 divides by 0
//   lr             rounds to 0 where it is a number of the format: no weight ever moves
//   weight_decay   rounds to 0 itself, or 1 - lr weight_decay rounds to 1: in the arithmetic, or
//                  only where the weight is stored to nearest
//   beta, alpha    rounds to 1, as factor of an average that then forgets nothing
// At the group's own lr, whatever the schedule makes of it. `names`: what stands before the texts
// of each group, "" for nothing.
std::vector<std::string> vanishing_constants(const Policy& policy,
                                             const std::vector<OptimizerGroup>& groups,
                                             const std::vector<std::string>& names);

}  // namespace lockstep
