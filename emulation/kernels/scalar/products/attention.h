// Scaled dot product attention with the set's own products and softmax. Formulas:
// emulation/kernels/args/attention_args.h.
#pragma once

#include "emulation/kernels/args/attention_args.h"

namespace lockstep {

template <typename T>
void attention_forward(const AttentionForward<T>& args);
template <typename T>
void attention_backward(const AttentionBackward<T>& args);

}  // namespace lockstep
