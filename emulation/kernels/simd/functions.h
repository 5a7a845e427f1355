// The functions of emulation/math/elementwise_functions.h in vectors: the bits of
// emulation/kernels/scalar/functions.h. Powers run the scalar kernel.
// Requires: cpu_has_avx2() or cpu_has_avx512() (emulation/kernels/simd/targets.h).
#pragma once

#include "emulation/kernels/kernel_set.h"

namespace lockstep {

// Replaces unary, unary_backward and binary in `kernels`.
void use_avx2_functions(Kernels<float>& kernels);
void use_avx2_functions(Kernels<double>& kernels);
void use_avx512_functions(Kernels<float>& kernels);
void use_avx512_functions(Kernels<double>& kernels);

}  // namespace lockstep
