// Elementwise kernels in vectors: the bits of emulation/kernels/scalar/elementwise.h.
// Requires: cpu_has_avx2() or cpu_has_avx512() (emulation/kernels/simd/targets.h).
#pragma once

#include "emulation/kernels/kernel_set.h"

namespace lockstep {

// Replaces add, mul, scale, relu and relu_backward in `kernels`.
void use_avx2_elementwise(Kernels<float>& kernels);
void use_avx2_elementwise(Kernels<double>& kernels);
void use_avx512_elementwise(Kernels<float>& kernels);
void use_avx512_elementwise(Kernels<double>& kernels);

}  // namespace lockstep
