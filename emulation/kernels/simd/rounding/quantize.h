// Rounding and measuring in vectors: the same bits as emulation/kernels/scalar/rounding/quantize.h,
// for every format, rounding, statistic and thread count. Float only; doubles run the scalar
// kernels. Requires: cpu_has_avx2() or cpu_has_avx512() (emulation/kernels/simd/targets.h).
#pragma once

#include <cstdint>

#include "emulation/kernels/kernel_set.h"
#include "emulation/kernels/simd/simd_target.h"

namespace lockstep {

void avx2_quantize(const float* before, float* after, int64_t count, const QuantizeSpec& spec,
                   TensorStats* stats);
void avx2_fill_and_quantize(const FillRange& fill, float* values, int64_t count,
                            const QuantizeSpec& spec, TensorStats* stats);
void avx2_compare(const float* lane, const float* reference, int64_t count, double scale,
                  const Format& lane_format, ErrorStats* error);

void avx512_quantize(const float* before, float* after, int64_t count, const QuantizeSpec& spec,
                     TensorStats* stats);
void avx512_fill_and_quantize(const FillRange& fill, float* values, int64_t count,
                              const QuantizeSpec& spec, TensorStats* stats);
void avx512_compare(const float* lane, const float* reference, int64_t count, double scale,
                    const Format& lane_format, ErrorStats* error);

// Replaces quantize, fill_and_quantize and compare of floats.
void use_simd_quantize(KernelSet& set, SimdTarget target);

}  // namespace lockstep
