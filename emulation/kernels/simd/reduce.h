// The kernels that sum, with block sums in vectors: the bits of emulation/kernels/scalar/reduce.h
// and of the scalar kernels built on it. Sums of doubles run the scalar kernels. Requires:
// cpu_has_avx2() or cpu_has_avx512() (emulation/kernels/simd/targets.h).
#pragma once

#include "emulation/kernels/kernel_set.h"

namespace lockstep {

double avx2_block_sum(const float* terms, int64_t count, const Accumulator& accumulator);
double avx512_block_sum(const float* terms, int64_t count, const Accumulator& accumulator);

// Replace, in float, channel_sum and batch_norm; in both types `row`, softmax, log_softmax and
// cross_entropy with their gradients.
void use_avx2_sums(Kernels<float>& kernels);
void use_avx2_sums(Kernels<double>& kernels);
void use_avx512_sums(Kernels<float>& kernels);
void use_avx512_sums(Kernels<double>& kernels);

}  // namespace lockstep
