// Row normalisation in vectors: the bits of emulation/kernels/scalar/row_norm.h. Requires:
// cpu_has_avx2() or cpu_has_avx512() (emulation/kernels/simd/targets.h).
#pragma once

#include "emulation/kernels/kernel_set.h"

namespace lockstep {

// Replaces row_norm and row_norm_backward of both element types.
void use_avx2_row_norm(KernelSet& set);
void use_avx512_row_norm(KernelSet& set);

}  // namespace lockstep
