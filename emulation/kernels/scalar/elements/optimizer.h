// The optimizers, element by element. Every elementary operation is rounded to the declared
// arithmetic, in the order of torch.optim's single-tensor loops.
#pragma once

#include "emulation/kernels/args/optimizer_args.h"
#include "emulation/kernels/optimizer_rules.h"

namespace lockstep {

// The last addition w + dw is rounded once, from its exact sum, to formats.weight. `stats` may be
// null.
template <typename T>
void scalar_optimizer(const UpdateRule& rule, const OptimizerArrays<T>& arrays, UpdateStats* stats);

}  // namespace lockstep
