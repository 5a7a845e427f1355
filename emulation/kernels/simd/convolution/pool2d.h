// Max pooling in vectors along a row of windows: the bits of
// emulation/kernels/scalar/convolution/pool2d.h. Strides of 1 and 2 along the row; other windows
// run the scalar loop. Requires: cpu_has_avx2() or cpu_has_avx512()
// (emulation/kernels/simd/targets.h).
#pragma once

#include "emulation/kernels/kernel_set.h"
#include "emulation/kernels/simd/simd_target.h"

namespace lockstep {

// Replaces max_pool2d of floats.
void use_simd_max_pool2d(KernelSet& set, SimdTarget target);

}  // namespace lockstep
