// Attention computed block by block, as in a fused kernel (FlashKernel::key_block above 0). Only
// for attention.cc, which has the other ways.
#pragma once

#include "emulation/kernels/args/attention_args.h"

namespace lockstep {

//   per block of keys:  m' = max(m, max s);  e = exp(s - m');  l = sum e + exp(m - m') l
//                       y = exp(m - m') y + round(e) v
//   y = y / l;  probabilities = exp(s - lse), lse = m + log l: recomputed by the backward pass
template <typename T>
void blocked_attention_forward(const AttentionForward<T>& args);

//   ds = p (dp - sum(dy y)), rounded;  dv, dk: sums over blocks of queries, dq: over blocks of keys
template <typename T>
void blocked_attention_backward(const AttentionBackward<T>& args);

}  // namespace lockstep
