// Shared by ops that change the format of a value but not its numbers.
#pragma once

#include "src/graph/op.h"

namespace lockstep {

// y = x; the executor rounds it if necessary.
void run_copy(const OpCall& call);
// dx = dy in x's format.
void cast_vjp(GradientBuilder& builder, const Node& node);

}  // namespace lockstep
