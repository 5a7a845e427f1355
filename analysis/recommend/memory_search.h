// What may be kept in fewer bits on top of a policy that passes: optimizer state, weights, sums?
#pragma once

#include "analysis/recommend/search_state.h"

namespace lockstep {

// Runs every memory choice of the subjects that were asked for, then those that passed together:
// of each subject the one that saves most, the first of equal ones. advice.chosen becomes what
// passes. Requires: advice.chosen.
void search_memory(SearchState& state);

}  // namespace lockstep
