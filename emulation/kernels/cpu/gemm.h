// Matrix products on the CPU's own dot instructions: VDPBF16PS, VFMADD231PH, TDPBF16PS, TDPFP16PS.
// The bits and events of emulation/kernels/scalar/gemm.h under the accumulator of the unit. Sums of
// other accumulators are the software kernels'.
#pragma once

#include "emulation/kernels/cpu/unit.h"
#include "emulation/kernels/kernel_set.h"

namespace lockstep {

// The unit whose instruction forms sums under this accumulator, or null: it is no unit's.
// FP32 sums by fused multiply-add are FMA's, of which the software kernels are made.
const CpuUnitInfo* cpu_unit_of(const Accumulator& accumulator);
// True when cpu_gemm forms such sums itself.
bool is_unit_sum(const Accumulator& accumulator);

// Requires, for a unit's accumulator: cpu_has() the unit (std::logic_error otherwise: it is never
// emulated in disguise).
void cpu_gemm(const GemmArgs<float>& args);

// One per unit; cpu_gemm chooses. Requires: k > 0.
void avx512_bf16_gemm(const GemmArgs<float>& args);
void avx512_fp16_gemm(const GemmArgs<float>& args);
void amx_gemm(const GemmArgs<float>& args);

}  // namespace lockstep
