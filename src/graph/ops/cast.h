// What ops share that change the format of a value and not its numbers.
#pragma once

#include "src/graph/op.h"

namespace lockstep {

// y = x; what is rounded is rounded by the executor.
void run_copy(const OpCall& call);
// dx = dy in x's format.
void cast_vjp(GradientBuilder& builder, const Node& node);

}  // namespace lockstep
