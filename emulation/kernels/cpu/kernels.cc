// Convolutions run as matrix products on the units, over the columns of
// emulation/kernels/simd/conv2d.cc.
#include "emulation/kernels/cpu/kernels.h"

#include "emulation/kernels/cpu/gemm.h"
#include "emulation/kernels/cpu/quantize.h"
#include "emulation/kernels/scalar/kernels.h"
#include "emulation/kernels/simd/conv2d.h"
#include "emulation/kernels/simd/kernels.h"

namespace lockstep {
namespace {

template <SoftwareKernels kSoftware>
void gemm(const GemmArgs<float>& args) {
  cpu_gemm(args, kSoftware().f32.gemm);
}

template <SoftwareKernels kSoftware>
KernelSet make_set() {
  KernelSet set = kSoftware();
  set.name = "cpu";
  set.help = "the CPU's own F16C, AVX512-BF16, AVX512-FP16 and AMX instructions";
  set.f32.quantize = [](const float* before, float* after, int64_t count, const QuantizeSpec& spec,
                        TensorStats* stats) {
    cpu_quantize(before, after, count, spec, stats, kSoftware().f32.quantize);
  };
  set.f32.gemm = gemm<kSoftware>;
  set.f32.rounded_gemm = nullptr;
  set.f32.conv2d_forward = [](const ConvArgs<float>& args) {
    if (!is_unit_sum(*args.accumulator)) return kSoftware().f32.conv2d_forward(args);
    conv2d_forward_by(gemm<kSoftware>, args);
  };
  set.f32.conv2d_backward_input = [](const ConvArgs<float>& args) {
    if (!is_unit_sum(*args.accumulator)) return kSoftware().f32.conv2d_backward_input(args);
    conv2d_backward_input_by(gemm<kSoftware>, args);
  };
  set.f32.conv2d_backward_weight = [](const ConvArgs<float>& args) {
    if (!is_unit_sum(*args.accumulator)) return kSoftware().f32.conv2d_backward_weight(args);
    conv2d_backward_weight_by(gemm<kSoftware>, args);
  };
  return set;
}

}  // namespace

template <SoftwareKernels kSoftware>
const KernelSet& cpu_kernels() {
  static const KernelSet set = make_set<kSoftware>();
  return set;
}

template const KernelSet& cpu_kernels<scalar_kernels>();
template const KernelSet& cpu_kernels<avx2_kernels>();
template const KernelSet& cpu_kernels<avx512_kernels>();

}  // namespace lockstep
