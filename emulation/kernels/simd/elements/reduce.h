// The kernels that sum, with block sums in vectors: the bits of
// emulation/kernels/scalar/elements/reduce.h and of the scalar kernels built on it. Sums of doubles
// are vectors down columns alone. Requires: cpu_has_avx2() or cpu_has_avx512()
// (emulation/kernels/simd/targets.h).
#pragma once

#include "emulation/kernels/kernel_set.h"
#include "emulation/kernels/simd/simd_target.h"

namespace lockstep {

double avx2_block_sum(const float* terms, int64_t count, const Accumulator& accumulator);
double avx512_block_sum(const float* terms, int64_t count, const Accumulator& accumulator);

// Replaces batch_norm in float, and in both types channel_sum and the kernels made of row functions
// (emulation/kernels/scalar/elements/row_kernels.h).
void use_simd_sums(KernelSet& set, SimdTarget target);

}  // namespace lockstep
