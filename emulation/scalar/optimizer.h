// SGD and Adam, element by element, every elementary operation rounded to the declared arithmetic.
#pragma once

#include "emulation/kernel_set.h"

namespace lockstep {

// The last addition w + dw is rounded once, from its double sum, to formats.weight. `stats` may be
// null.
template <typename T>
void scalar_sgd(const SgdArgs<T>& args, UpdateStats* stats);
template <typename T>
void scalar_adam(const AdamArgs<T>& args, UpdateStats* stats);

}  // namespace lockstep
