// Convolution and its gradients as matrix products over gathered columns (im2col), image by image:
// the bits and events of emulation/kernels/scalar/conv2d.h. Requires: cpu_has_avx2() or
// cpu_has_avx512() (emulation/kernels/simd/targets.h).
#pragma once

#include "emulation/kernels/kernel_set.h"

namespace lockstep {

void avx2_conv2d_forward(const ConvArgs<float>& args);
void avx2_conv2d_forward(const ConvArgs<double>& args);
void avx2_conv2d_backward_input(const ConvArgs<float>& args);
void avx2_conv2d_backward_input(const ConvArgs<double>& args);
void avx2_conv2d_backward_weight(const ConvArgs<float>& args);
void avx2_conv2d_backward_weight(const ConvArgs<double>& args);

void avx512_conv2d_forward(const ConvArgs<float>& args);
void avx512_conv2d_forward(const ConvArgs<double>& args);
void avx512_conv2d_backward_input(const ConvArgs<float>& args);
void avx512_conv2d_backward_input(const ConvArgs<double>& args);
void avx512_conv2d_backward_weight(const ConvArgs<float>& args);
void avx512_conv2d_backward_weight(const ConvArgs<double>& args);

// The same over any gemm of floats.
using FloatGemm = void (*)(const GemmArgs<float>&);
void conv2d_forward_by(FloatGemm gemm, const ConvArgs<float>& args);
void conv2d_backward_input_by(FloatGemm gemm, const ConvArgs<float>& args);
void conv2d_backward_weight_by(FloatGemm gemm, const ConvArgs<float>& args);

}  // namespace lockstep
