// Max pooling in vectors along a row of windows: the bits of emulation/kernels/scalar/pool2d.h.
// Strides of 1 and 2 along the row, other windows run the scalar loop. Requires: cpu_has_avx2() or
// cpu_has_avx512() (emulation/kernels/simd/targets.h).
#pragma once

#include "emulation/kernels/kernel_set.h"

namespace lockstep {

void avx2_max_pool2d(const PoolShape& shape, const float* x, float* y, int32_t* argmax);
void avx512_max_pool2d(const PoolShape& shape, const float* x, float* y, int32_t* argmax);

}  // namespace lockstep
