// Batch normalisation, forward and backward, over any block sum. Formulas:
// emulation/kernels/args/norm_args.h.
#pragma once

#include "emulation/kernels/args/norm_args.h"
#include "emulation/kernels/scalar/reduce.h"

namespace lockstep {

// y = ((x - mean) * inv_std) * w + b, every operation in T; a null weight is 1, a null bias 0.
// Outputs other than y (dx) may be null.
template <typename T>
void batch_norm_with(BlockSum<T> block_sum, const BatchNormArgs<T>& args);
template <typename T>
void batch_norm_backward_with(BlockSum<T> block_sum, const BatchNormBackwardArgs<T>& args);

template <typename T>
void scalar_batch_norm(const BatchNormArgs<T>& args);
template <typename T>
void scalar_batch_norm_backward(const BatchNormBackwardArgs<T>& args);

}  // namespace lockstep
