// Stacks of LSTM and GRU layers with the set's own products. Formulas and roundings:
// emulation/kernels/args/recurrent_args.h.
#pragma once

#include "emulation/kernels/args/recurrent_args.h"

namespace lockstep {

template <typename T>
void recurrent_forward(const RecurrentForward<T>& args);
template <typename T>
void recurrent_backward(const RecurrentBackward<T>& args);

}  // namespace lockstep
