// Block formats in vectors: the same bits as emulation/kernels/scalar/rounding/block_quantize.h,
// for every format, rounding, axis and thread count. Float only. Requires: cpu_has_avx2() or
// cpu_has_avx512() (emulation/kernels/simd/targets.h).
#pragma once

#include "emulation/kernels/kernel_set.h"
#include "emulation/kernels/simd/simd_target.h"

namespace lockstep {

// Replaces quantize_blocks and quantize_block_squares of floats.
void use_simd_block_quantize(KernelSet& set, SimdTarget target);

}  // namespace lockstep
