// Finds the numbers of an optimizer that are lost in a policy's formats.
// Found before a run, from the numbers alone. The effect of gradients is measured (updates/).
#pragma once

#include <string>
#include <vector>

#include "src/policy/policy.h"
#include "src/update/parameter_groups.h"

namespace lockstep {

// One text per number and parameter group, for parameters in the policy's weight format:
//   eps            rounds to 0 where it is added: sqrt(v) = 0 divides by 0
//   lr             rounds to 0 where it is a number of the format: no weight changes
//   weight_decay   rounds to 0 itself, or 1 - lr weight_decay rounds to 1: in the arithmetic, or
//                  only where the weight is stored to nearest
//   beta, alpha    rounds to 1, as factor of an average that then never decays
// At the group's own lr, without its schedule. `names`: the prefix of each group's texts, "" for
// none.
std::vector<std::string> vanishing_constants(const Policy& policy,
                                             const std::vector<OptimizerGroup>& groups,
                                             const std::vector<std::string>& names);

}  // namespace lockstep
