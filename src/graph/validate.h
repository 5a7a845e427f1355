// Checks that a graph is well formed.
#pragma once

#include "src/graph/ir.h"

namespace lockstep {

// Checks ids, order, ops, arity, attribute names, and every output shape against the op's rule.
// Throws: InputError with all problems at once.
void validate(const Graph& graph);

}  // namespace lockstep
