// Combines the gradients of several workers.
// One parameter at a time, in the order and format that a policy declares. Knows neither lanes nor
// sites.
//
//   1. every worker's gradient is rounded to the format, and divided by W if the policy says before
//   2. sums of two, each rounded to the format:
//
//        ring, W = 3   chunk 0: (g1 + g2) + g0
//                      chunk 1: (g2 + g0) + g1
//                      chunk 2: (g0 + g1) + g2
//        tree, W = 5   ((g0 + g1) + (g2 + g3)) + g4
//
//      a ring cuts the elements into W chunks of ceil(size / W), the last ones shorter or empty
//   3. divided by W if the policy says after, and rounded to the gradient's own format
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

// Step 1, in place. `stats` may be null. to_zero, to_infinity and saturated count over all
// roundings so far (two halves of a tree may overflow in one element), at most `count`; all other
// fields are of the last rounding.
void enter_all_reduce(const KernelSet& kernels, const AllReduce& how, const Format& format,
                      int64_t workers, Tensor& gradient, TensorStats* stats);

// Steps 2 and 3, on gradients after step 1, which are not kept. `stats` as above.
// Requires: at least 2 workers, all tensors of one size and container.
void all_reduce(const KernelSet& kernels, const AllReduce& how, const Format& format,
                const Format& gradient_format, std::vector<Tensor>& workers, Tensor& result,
                TensorStats* stats);

}  // namespace lockstep
