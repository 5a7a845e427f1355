// Rows and elements picked by index, and the sums of their gradients. Every sum is a chain over
// ascending positions from +0 (emulation/kernels/scalar/products/chain_add.h), with any number of
// threads.
#pragma once

#include "emulation/accumulator/accumulator.h"
#include "emulation/kernels/args/movement_args.h"

namespace lockstep {

template <typename T>
void pick_rows(const RowPick& pick, const T* x, T* y);
// dx[o, k, :] = sum over ascending j with index[j] = k of dy[o, j, :].
template <typename T>
void pick_rows_backward(const RowPick& pick, const T* dy, T* dx, const Accumulator& accumulator);

template <typename T>
void pick_elements(const ElementPick& pick, const T* x, T* y);
// dx += dy at the place that each element came from, ascending j. Requires: dx is zero.
template <typename T>
void pick_elements_backward(const ElementPick& pick, const T* dy, T* dx,
                            const Accumulator& accumulator);

}  // namespace lockstep
