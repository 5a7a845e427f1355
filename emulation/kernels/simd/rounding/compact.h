// Compact forms in vectors: the bits of emulation/kernels/scalar/rounding/compact.h.
// Requires: cpu_has_avx2() or cpu_has_avx512() (emulation/kernels/simd/targets.h).
#pragma once

#include "emulation/kernels/kernel_set.h"
#include "emulation/kernels/simd/simd_target.h"

namespace lockstep {

// Replaces all of KernelSet::compact.
void use_simd_compact(KernelSet& set, SimdTarget target);

}  // namespace lockstep
