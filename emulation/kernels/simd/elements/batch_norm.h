// Batch normalisation in vectors: the bits of emulation/kernels/scalar/elements/batch_norm.h.
// Requires: cpu_has_avx2() or cpu_has_avx512() (emulation/kernels/simd/targets.h).
#pragma once

#include "emulation/kernels/kernel_set.h"
#include "emulation/kernels/simd/simd_target.h"

namespace lockstep {

// Replaces batch_norm and batch_norm_backward of both element types.
void use_simd_batch_norm(KernelSet& set, SimdTarget target);

}  // namespace lockstep
