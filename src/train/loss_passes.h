// Backward passes of single losses: which policies keep a scaler per loss, and which sites belong
// to a loss. A scaler belongs to a loss and not to an optimizer, because a scale enters where a
// backward pass starts. Knows graphs and policies, not lanes.
#pragma once

#include <vector>

#include "src/graph/ir.h"
#include "src/graph/site.h"
#include "src/policy/policy.h"

namespace lockstep {

// [loss_scale] per_loss, or its kind's default; never with one backward pass.
bool has_scaler_per_loss(const Policy& policy, const Graph& step);

// By backward pass and site: the values that lead to the pass's loss, and those that come back from
// it up to the all-reduce. With one pass, every site.
std::vector<std::vector<bool>> sites_of_passes(const Graph& step, const SiteTable& sites);

}  // namespace lockstep
