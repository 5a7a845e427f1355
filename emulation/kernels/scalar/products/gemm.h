// Matrix product by the triple loop: the definition. Every other gemm equals it bit for bit.
#pragma once

#include "emulation/kernels/args/gemm_args.h"

namespace lockstep {

// Float arrays with an fp64 accumulator: the chain is held in double and rounded to float once, at
// its end. NaN results are the canonical NaN.
template <typename T>
void scalar_gemm(const GemmArgs<T>& args);

}  // namespace lockstep
