// The largest number of an array, in vectors: the bits of
// emulation/kernels/scalar/elements/whole_array.h. Requires: cpu_has_avx2() or cpu_has_avx512()
// (emulation/kernels/simd/targets.h).
#pragma once

#include "emulation/kernels/kernel_set.h"
#include "emulation/kernels/simd/simd_target.h"

namespace lockstep {

// Replaces abs_max, finite_abs_max and all_finite of both element types.
void use_simd_whole_array(KernelSet& set, SimdTarget target);

}  // namespace lockstep
