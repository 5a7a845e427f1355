// Convolution and its gradients as matrix products over gathered columns (im2col), image by image:
// the bits and events of emulation/kernels/scalar/convolution/conv2d.h. Requires: cpu_has_avx2() or
// cpu_has_avx512() (emulation/kernels/simd/targets.h).
#pragma once

#include "emulation/kernels/kernel_set.h"
#include "emulation/kernels/simd/simd_target.h"

namespace lockstep {

// Replaces the three convolutions of both element types.
void use_simd_conv2d(KernelSet& set, SimdTarget target);

// The same over any gemm of floats.
using FloatGemm = void (*)(const GemmArgs<float>&);
void conv2d_forward_by(FloatGemm gemm, const ConvArgs<float>& args);
void conv2d_backward_input_by(FloatGemm gemm, const ConvArgs<float>& args);
void conv2d_backward_weight_by(FloatGemm gemm, const ConvArgs<float>& args);
// The weight gradient as products over all images at once, for a gemm that cannot continue from C
// as the accumulator does. The same bits where it can. Gathers at most `most_elements` (256 MB),
// but at least a whole column.
void conv2d_backward_weight_at_once(FloatGemm gemm, const ConvArgs<float>& args,
                                    int64_t most_elements = int64_t{1} << 26);

}  // namespace lockstep
