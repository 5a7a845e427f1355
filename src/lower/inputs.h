// The inputs of a lowering: the same for all of its parts, and changed by none.
#pragma once

#include "src/graph/ir.h"
#include "src/graph/site.h"
#include "src/policy/policy.h"

namespace lockstep {

struct LowerInputs {
  const Graph& graph;
  const SiteTable& sites;
  const Policy& policy;
  const Format* container;  // fp32, or fp64 in the truth lane
};

}  // namespace lockstep
