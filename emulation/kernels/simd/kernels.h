// The vector sets, with the bits of the scalar set. They run where cpu_has_avx2() or
// cpu_has_avx512() is true (emulation/kernels/simd/targets.h).
#pragma once

#include "emulation/kernels/kernel_set.h"

namespace lockstep {

const KernelSet& avx2_kernels();
const KernelSet& avx512_kernels();

}  // namespace lockstep
