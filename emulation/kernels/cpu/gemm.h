// Matrix products on the CPU's own dot instructions: VDPBF16PS, VFMADD231PH, TDPBF16PS, TDPFP16PS.
// The bits and events of emulation/kernels/scalar/products/gemm.h under the accumulator of the
// unit. The software kernels form the sums of other accumulators.
#pragma once

#include "emulation/kernels/args/gemm_args.h"
#include "emulation/kernels/cpu_unit.h"

namespace lockstep {

// True if cpu_gemm forms such sums itself.
bool is_unit_sum(const Accumulator& accumulator);

// `software` forms the sums that no unit forms. Requires, for a unit's accumulator: cpu_has() the
// unit (std::logic_error otherwise: software never emulates a missing unit here).
void cpu_gemm(const GemmArgs<float>& args, void (*software)(const GemmArgs<float>&));

// One per unit; cpu_gemm chooses. Requires: k > 0.
void avx512_bf16_gemm(const GemmArgs<float>& args);
void avx512_fp16_gemm(const GemmArgs<float>& args);
void amx_gemm(const GemmArgs<float>& args);

}  // namespace lockstep
