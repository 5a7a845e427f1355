// Finds what else may be kept in fewer bits once a policy passes: optimizer state, weights, sums.
#pragma once

#include "analysis/search/search_state.h"

namespace lockstep {

// Runs every memory choice of the subjects that were asked for, then together the first row of each
// subject that passed. advice.chosen becomes that, or, if it fails, the last subject's row alone
// (advice.memory_alone). Requires: advice.chosen.
void search_memory(SearchState& state);

}  // namespace lockstep
