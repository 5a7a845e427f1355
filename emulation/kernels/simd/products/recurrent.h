// The cells of recurrent layers in vectors: the bits of
// emulation/kernels/scalar/products/recurrent.h. Requires: cpu_has_avx2() or cpu_has_avx512()
// (emulation/kernels/simd/targets.h).
#pragma once

#include "emulation/kernels/kernel_set.h"
#include "emulation/kernels/simd/simd_target.h"

namespace lockstep {

// Replaces the cell functions of both element types.
void use_simd_cells(KernelSet& set, SimdTarget target);

}  // namespace lockstep
