// The losses with vector exp, log and block sums: the bits of emulation/scalar/loss.h.
// Requires: cpu_has_avx2() or cpu_has_avx512() (emulation/simd/targets.h).
#pragma once

#include "emulation/kernel_set.h"

namespace lockstep {

// Replaces the losses and their gradients in `kernels`.
void use_avx2_losses(Kernels<float>& kernels);
void use_avx2_losses(Kernels<double>& kernels);
void use_avx512_losses(Kernels<float>& kernels);
void use_avx512_losses(Kernels<double>& kernels);

}  // namespace lockstep
