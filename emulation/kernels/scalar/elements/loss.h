// Scalar cross entropy and its gradient, over any row functions. Formulas:
// emulation/kernels/args/loss_args.h. Rows are processed in tiles of a few thousand elements, so
// that exp and log run over whole arrays and a tile stays in the cache. A row's result does not
// depend on the tiles.
#pragma once

#include "emulation/kernels/kernel_set.h"

namespace lockstep {

template <typename T>
void cross_entropy_with(const RowFunctions<T>& functions, const CrossEntropyArgs<T>& args);
template <typename T>
void cross_entropy_backward_with(const RowFunctions<T>& functions, const CrossEntropyArgs<T>& args);

}  // namespace lockstep
