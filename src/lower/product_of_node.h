// Which of an op's three products does a node compute?
#pragma once

#include "src/graph/ir.h"
#include "src/policy/factor_scaling.h"

namespace lockstep {

// A backward node that reads the forward op's first operand computes wgrad, any other dgrad.
Product product_of(const Graph& graph, const Node& node);

}  // namespace lockstep
