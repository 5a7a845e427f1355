// Convolution on the CPU's own dot instructions, as matrix products over gathered columns: the bits
// and events of emulation/kernels/scalar/conv2d.h under the accumulator of the unit. Sums of other
// accumulators are the software kernels'.
#pragma once

#include "emulation/kernels/kernel_set.h"

namespace lockstep {

void cpu_conv2d_forward(const ConvArgs<float>& args);
void cpu_conv2d_backward_input(const ConvArgs<float>& args);
void cpu_conv2d_backward_weight(const ConvArgs<float>& args);

}  // namespace lockstep
