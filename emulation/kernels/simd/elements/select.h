// Choices by masks, and random masks, in vectors: the bits of
// emulation/kernels/scalar/elements/select.h. Requires: cpu_has_avx2() or cpu_has_avx512()
// (emulation/kernels/simd/targets.h).
#pragma once

#include "emulation/kernels/kernel_set.h"
#include "emulation/kernels/simd/simd_target.h"

namespace lockstep {

// Replaces select and masked_scale of both element types, and draw_mask.
void use_simd_select(KernelSet& set, SimdTarget target);

}  // namespace lockstep
