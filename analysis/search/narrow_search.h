// Finds the linear layers that may use a narrower format once a policy passes.
#pragma once

#include "analysis/search/search_state.h"

namespace lockstep {

// Tries the narrow formats of the search, each on top of advice.chosen, which becomes what passes
// and costs less; and TF32 for products of what is in FP32. Requires: advice.chosen.
void search_narrow_formats(SearchState& state);

}  // namespace lockstep
