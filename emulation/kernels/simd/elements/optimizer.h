// Optimizers in vectors: the bits of emulation/kernels/scalar/elements/optimizer.h.
// Requires: cpu_has_avx2() or cpu_has_avx512() (emulation/kernels/simd/targets.h).
#pragma once

#include "emulation/kernels/kernel_set.h"
#include "emulation/kernels/simd/simd_target.h"

namespace lockstep {

// Replaces the optimizers of both element types. Formats other than the container's own, Kahan's
// compensation and measurements run the scalar kernel.
void use_simd_optimizer(KernelSet& set, SimdTarget target);

}  // namespace lockstep
