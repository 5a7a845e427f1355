// Block formats in vectors: the same bits as emulation/kernels/scalar/block_quantize.h, for every
// format, rounding, axis and thread count. Float only. Requires: cpu_has_avx2() or cpu_has_avx512()
// (emulation/kernels/simd/targets.h).
#pragma once

#include "emulation/kernels/block_quantize.h"

namespace lockstep {

void avx2_quantize_blocks(const float* before, float* after, const BlockShape& shape,
                          const BlockQuantizeSpec& spec, float tensor_scale, TensorStats* stats,
                          uint8_t* codes);
float avx2_finite_abs_max(const float* x, int64_t count);

void avx512_quantize_blocks(const float* before, float* after, const BlockShape& shape,
                            const BlockQuantizeSpec& spec, float tensor_scale, TensorStats* stats,
                            uint8_t* codes);
float avx512_finite_abs_max(const float* x, int64_t count);

}  // namespace lockstep
