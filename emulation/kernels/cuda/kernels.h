// The kernels of the `cuda` engine: a software set whose products of 16 bits and fewer, and of
// TF32, run on a device, which also rounds the results of rounded_gemm. Everything else is the
// software set's. And software sets whose products run on a device without a change of bits.
#pragma once

#include "emulation/kernels/kernel_set.h"
#include "emulation/kernels/simd/products/engine_products.h"

namespace lockstep {

// On top of scalar_kernels, avx2_kernels or avx512_kernels.
template <SoftwareKernels kSoftware>
const KernelSet& cuda_kernels();  // on the GPU. Requires: cuda::gpu_device() is not null
template <SoftwareKernels kSoftware>
const KernelSet& cuda_host_kernels();  // on the host that stands in for a GPU

// The software set with the products that a device's kernels form under the lane's accumulator; all
// bits are the software set's.
template <SoftwareKernels kSoftware>
const KernelSet& modelled_kernels();  // on the GPU. Requires: cuda::gpu_device() is not null
template <SoftwareKernels kSoftware>
const KernelSet& modelled_host_kernels();  // on the host that stands in for a GPU

}  // namespace lockstep
