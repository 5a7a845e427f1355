// Attention as a fused kernel computes it block by block (FlashKernel::key_block above 0). For
// attention.cc alone, which has the other ways.
#pragma once

#include "emulation/kernels/attention_args.h"

namespace lockstep {

//   per block of keys:  m' = max(m, max s);  e = exp(s - m');  l = sum e + exp(m - m') l
//                       y = exp(m - m') y + round(e) v
//   y = y / l;  probabilities = exp(s - lse), lse = m + log l: what the backward pass makes of them
template <typename T>
void blocked_attention_forward(const AttentionForward<T>& args);

//   ds = p (dp - sum(dy y)), rounded;  dv, dk: sums over blocks of queries, dq: over blocks of keys
template <typename T>
void blocked_attention_backward(const AttentionBackward<T>& args);

}  // namespace lockstep
