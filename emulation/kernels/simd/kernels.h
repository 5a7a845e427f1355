// The vector sets: the bits of the scalar one. They run where cpu_has_avx2(), respectively
// cpu_has_avx512() (emulation/kernels/simd/targets.h).
#pragma once

#include "emulation/kernels/kernel_set.h"

namespace lockstep {

const KernelSet& avx2_kernels();
const KernelSet& avx512_kernels();

}  // namespace lockstep
