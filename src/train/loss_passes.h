// What follows from each loss having a backward pass of its own?
// Who keeps a scaler per loss, and which sites a loss has to do with. Knows graphs and policies, no
// lanes.
#pragma once

#include <vector>

#include "src/graph/ir.h"
#include "src/graph/site.h"
#include "src/policy/policy.h"

namespace lockstep {

// [loss_scale] per_loss, or what its kind does without it; never with one backward pass.
bool has_scaler_per_loss(const Policy& policy, const Graph& step);

// By backward pass and site: values that lead to the pass's loss, and those that come back from it
// as far as the all-reduce. Of one pass that is every site.
std::vector<std::vector<bool>> sites_of_passes(const Graph& step, const SiteTable& sites);

}  // namespace lockstep
