// Elementwise kernels in vectors: the bits of emulation/kernels/scalar/elements/elementwise.h.
// Requires: cpu_has_avx2() or cpu_has_avx512() (emulation/kernels/simd/targets.h).
#pragma once

#include "emulation/kernels/kernel_set.h"
#include "emulation/kernels/simd/simd_target.h"

namespace lockstep {

// Replaces add, mul, scale, divide, add_channels, relu and relu_backward of both element types.
void use_simd_elementwise(KernelSet& set, SimdTarget target);

}  // namespace lockstep
