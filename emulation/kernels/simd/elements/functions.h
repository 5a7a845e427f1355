// The functions of emulation/math/elementwise_functions.h in vectors: the bits of
// emulation/kernels/scalar/elements/functions.h.
// Requires: cpu_has_avx2() or cpu_has_avx512() (emulation/kernels/simd/targets.h).
#pragma once

#include "emulation/kernels/kernel_set.h"
#include "emulation/kernels/simd/simd_target.h"

namespace lockstep {

// Replaces unary, unary_backward and binary of both element types.
void use_simd_functions(KernelSet& set, SimdTarget target);

}  // namespace lockstep
