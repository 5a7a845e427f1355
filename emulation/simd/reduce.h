// The kernels that sum, with block sums in vectors: the bits of emulation/scalar/reduce.h and of
// the scalar kernels built on it. Float only; sums of doubles run the scalar kernels. Requires:
// cpu_has_avx2() or cpu_has_avx512() (emulation/simd/targets.h).
#pragma once

#include "emulation/kernel_set.h"

namespace lockstep {

double avx2_block_sum(const float* terms, int64_t count, const Accumulator& accumulator);
double avx512_block_sum(const float* terms, int64_t count, const Accumulator& accumulator);

// Replaces channel_sum, batch_norm, softmax and their gradients in `kernels`.
void use_avx2_sums(Kernels<float>& kernels);
void use_avx512_sums(Kernels<float>& kernels);

}  // namespace lockstep
