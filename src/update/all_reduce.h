// Combines the gradients of several workers.
// One parameter at a time, in the order and format that a policy declares. Knows neither lanes nor
// sites.
//
//   1. every worker's gradient is rounded to the format, and divided by divisor_before()
//   2. sums of two, each rounded to the format:
//
//        ring, W = 3   chunk 0: (g1 + g2) + g0
//                      chunk 1: (g2 + g0) + g1
//                      chunk 2: (g0 + g1) + g2
//        tree, W = 5   ((g0 + g1) + (g2 + g3)) + g4
//        all-gather    ((g0 + g1) + g2) + ...
//
//      a ring cuts the elements into W chunks of ceil(size / W), the last ones shorter or empty
//   3. divided by the rest of W, and rounded to the format of the result
//
// Source: P. Patarasuk, X. Yuan, JPDC 69(2), 2009 (ring); R. Thakur et al., IJHPCA 19(1), 2005
// (binomial tree). Not modelled: libraries sum some chunks in another direction, and cut large
// tensors into buckets first.
#pragma once

#include <vector>

#include "emulation/kernels/kernel_set.h"
#include "emulation/stats/tensor_stats.h"
#include "src/core/tensor.h"
#include "src/policy/policy.h"

namespace lockstep {

// W where the policy divides before the sum, 1 where after. Both: the least power of two that does
// not divide W or whose square is at least W: 2 of 2, 3 and 4 workers, 4 of 6, 8 and 16. The sum is
// divided by the rest, W over that. Source: `_get_gradient_divide_factors` of PyTorch's FSDP2,
// which divides FP16 gradients so.
double divisor_before(const AllReduce& how, int64_t workers);

// Step 1, in place. `stats` may be null. to_zero, to_infinity and saturated count over all
// roundings so far (two halves of a tree may overflow in one element), at most `count`; all other
// fields are of the last rounding.
void enter_all_reduce(const KernelSet& kernels, const AllReduce& how, const Format& format,
                      int64_t workers, Tensor& gradient, TensorStats* stats);

// Steps 2 and 3, on gradients after step 1, which are not kept. `stats` as above.
// Requires: at least 2 workers, all tensors of one size and container.
void all_reduce(const KernelSet& kernels, const AllReduce& how, const Format& format,
                const Format& result_format, std::vector<Tensor>& workers, Tensor& result,
                TensorStats* stats);

}  // namespace lockstep
