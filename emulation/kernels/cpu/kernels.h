// The kernels of the `cpu` engine: a software set whose conversions and sums of products run on the
// CPU's own units where a unit computes them. All others are the software set's. Its results are
// those of the hardware, so the software engine does not list it among its sets.
#pragma once

#include "emulation/kernels/kernel_set.h"
#include "emulation/kernels/simd/products/engine_products.h"

namespace lockstep {

// The set on top of scalar_kernels, avx2_kernels or avx512_kernels.
template <SoftwareKernels kSoftware>
const KernelSet& cpu_kernels();

}  // namespace lockstep
