// Rounding by the CPU's own conversions: VCVTPS2PH and VCVTPH2PS for fp16, VCVTNEPS2BF16 for
// bf16+flush_in. The software kernels compute the statistics, and the conversions that no unit has.
#pragma once

#include "emulation/kernels/args/quantize_spec.h"
#include "emulation/kernels/cpu_unit.h"

namespace lockstep {

// The definition: it does the conversions that no unit has, and measures.
using QuantizeKernel = void (*)(const float* before, float* after, int64_t count,
                                const QuantizeSpec& spec, TensorStats* stats);

// Requires, for a unit's conversion: cpu_has() the unit (std::logic_error otherwise).
void cpu_quantize(const float* before, float* after, int64_t count, const QuantizeSpec& spec,
                  TensorStats* stats, QuantizeKernel software);

}  // namespace lockstep
