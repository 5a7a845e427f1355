// The kernels of the `cpu` engine: a software set whose conversions and sums of products run on the
// CPU's own units where a unit computes them. Everything else is the software set's. This is not a
// set of the software engine: its results are the hardware's.
#pragma once

#include "emulation/kernels/kernel_set.h"
#include "emulation/kernels/simd/products/engine_products.h"

namespace lockstep {

// The set on top of scalar_kernels, avx2_kernels or avx512_kernels.
template <SoftwareKernels kSoftware>
const KernelSet& cpu_kernels();

}  // namespace lockstep
