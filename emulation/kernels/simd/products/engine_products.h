// The kernels of a software set that an engine's own matrix products replace: convolutions become
// such products, over the columns of emulation/kernels/simd/convolution/conv2d.cc.
#pragma once

#include "emulation/kernels/kernel_set.h"
#include "emulation/kernels/simd/convolution/conv2d.h"

namespace lockstep {

// The set that computes what an engine does not.
using SoftwareKernels = const KernelSet& (*)();

// `Products` has
//   static bool is_own(const Accumulator&)      the engine forms such sums itself
//   static void gemm(const GemmArgs<float>&)    its product, of other sums too
//   static constexpr bool kContinuesSums        products that start from C have the software's bits
template <typename Products, SoftwareKernels kSoftware>
void use_products(KernelSet& set) {
  set.f32.gemm = Products::gemm;
  set.f32.rounded_gemm = nullptr;
  set.f32.conv2d_forward = [](const ConvArgs<float>& args) {
    if (!Products::is_own(*args.accumulator)) return kSoftware().f32.conv2d_forward(args);
    conv2d_forward_by(Products::gemm, args);
  };
  set.f32.conv2d_backward_input = [](const ConvArgs<float>& args) {
    if (!Products::is_own(*args.accumulator)) return kSoftware().f32.conv2d_backward_input(args);
    conv2d_backward_input_by(Products::gemm, args);
  };
  set.f32.conv2d_backward_weight = [](const ConvArgs<float>& args) {
    if (!Products::is_own(*args.accumulator)) return kSoftware().f32.conv2d_backward_weight(args);
    if constexpr (Products::kContinuesSums) {
      conv2d_backward_weight_by(Products::gemm, args);
    } else {
      conv2d_backward_weight_at_once(Products::gemm, args);
    }
  };
}

}  // namespace lockstep
