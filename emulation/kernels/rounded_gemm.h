// A matrix product whose factors are rounded on their way in and whose result on its way out.
// The definition is four passes; a kernel set may do them in one, reading and writing every array
// once, with the same bits and the same statistics.
//
//   A' = quantize(A)   B' = quantize(B)   C = gemm(A', B')   C = quantize(C)
//
// A and B stay as they are, unless they are C. Knows nothing of formats and accumulators.
#pragma once

#include "emulation/kernels/kernel_set.h"

namespace lockstep {

// Requires: arrays that are rounded or measured are dense (ld* = their number of columns), as
// statistics are sums over the whole array in its order; C must not overlap A or B.
template <typename T>
void rounded_gemm(const Kernels<T>& kernels, const RoundedGemmArgs<T>& args);

// The definition, by the functions given.
template <typename T>
void rounded_gemm_in_passes(const RoundedGemmArgs<T>& args, void (*gemm)(const GemmArgs<T>&),
                            void (*quantize)(const T*, T*, int64_t, const QuantizeSpec&,
                                             TensorStats*));

}  // namespace lockstep
