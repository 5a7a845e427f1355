// Convolutions whose sums are chains in the container's own format (FP32 fused in floats, FP64 in
// doubles), without a matrix of gathered columns: the bits of
// emulation/kernels/scalar/convolution/conv2d.h. Requires: has_direct_conv2d(args); cpu_has_avx2()
// or cpu_has_avx512() (emulation/kernels/simd/targets.h).
#pragma once

#include "emulation/kernels/args/conv_args.h"

namespace lockstep {

template <typename T>
bool has_direct_conv2d(const ConvArgs<T>& args) {
  const Accumulator& sum = *args.accumulator;
  const bool own = sizeof(T) == sizeof(double) ? sum.format->is_fp64() : sum.format->is_fp32();
  return sum.kind == AccumulatorKind::kFusedChain && own && args.events == nullptr;
}

// The three convolutions of one instruction set.
template <typename T>
struct DirectConv2d {
  void (*forward)(const ConvArgs<T>&);
  void (*backward_input)(const ConvArgs<T>&);
  void (*backward_weight)(const ConvArgs<T>&);
};
template <typename T>
DirectConv2d<T> avx2_direct_conv2d();
template <typename T>
DirectConv2d<T> avx512_direct_conv2d();

}  // namespace lockstep
