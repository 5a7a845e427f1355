// The kernels of the `cpu` engine: a software set, with the conversions and sums of products that
// the CPU's own units compute done by those. What no unit computes is that software set's. No set
// of the software engine: what it gives is the hardware's.
#pragma once

#include "emulation/kernels/kernel_set.h"

namespace lockstep {

// Which set computes what no unit does.
using SoftwareKernels = const KernelSet& (*)();

// The set over scalar_kernels, avx2_kernels or avx512_kernels.
template <SoftwareKernels kSoftware>
const KernelSet& cpu_kernels();

}  // namespace lockstep
