// The units' products under the columns of emulation/kernels/simd/conv2d.cc.
#include "emulation/kernels/cpu/conv2d.h"

#include "emulation/kernels/cpu/gemm.h"
#include "emulation/kernels/simd/conv2d.h"

namespace lockstep {

void cpu_conv2d_forward(const ConvArgs<float>& args) {
  if (!is_unit_sum(*args.accumulator)) return active_kernels().f32.conv2d_forward(args);
  conv2d_forward_by(cpu_gemm, args);
}
void cpu_conv2d_backward_input(const ConvArgs<float>& args) {
  if (!is_unit_sum(*args.accumulator)) return active_kernels().f32.conv2d_backward_input(args);
  conv2d_backward_input_by(cpu_gemm, args);
}
void cpu_conv2d_backward_weight(const ConvArgs<float>& args) {
  if (!is_unit_sum(*args.accumulator)) return active_kernels().f32.conv2d_backward_weight(args);
  conv2d_backward_weight_by(cpu_gemm, args);
}

}  // namespace lockstep
