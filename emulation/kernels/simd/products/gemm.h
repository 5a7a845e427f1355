// Matrix products in vectors: the bits and events of emulation/kernels/scalar/products/gemm.h.
// Vectors run across columns of C, never across k. May be called inside a parallel_for body; it
// then runs on that thread only. Requires: cpu_has_avx2() or cpu_has_avx512()
// (emulation/kernels/simd/targets.h).
#pragma once

#include "emulation/kernels/kernel_set.h"
#include "emulation/kernels/simd/simd_target.h"

namespace lockstep {

void avx2_gemm(const GemmArgs<float>& args);
void avx2_gemm(const GemmArgs<double>& args);
void avx512_gemm(const GemmArgs<float>& args);
void avx512_gemm(const GemmArgs<double>& args);

// Replaces gemm of both element types and rounded_gemm of floats, which has
// the bits and statistics of emulation/kernels/rounded_gemm.h in one pass over A and B.
void use_simd_gemm(KernelSet& set, SimdTarget target);

}  // namespace lockstep
