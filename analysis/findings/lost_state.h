// Finds optimizer state that became zero.
// Judged by energy. State whose root divides the update is also judged by its elements (nonzero
// elements that became zero / nonzero elements): however small, each decides the size of its own
// update.
#pragma once

#include <optional>
#include <vector>

#include "analysis/findings/finding.h"
#include "analysis/findings/share_tally.h"
#include "src/update/optimizers.h"

namespace lockstep {

inline constexpr double kStateLimit = 0.1;  // of the state's nonzero elements: a judgement

// `states` by site id, may be empty.
std::optional<Finding> find_lost_state(const ShareTally& tally,
                                       const std::vector<OptimizerState>& states);

}  // namespace lockstep
