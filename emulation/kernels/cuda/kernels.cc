#include "emulation/kernels/cuda/kernels.h"

#include "emulation/accumulator/dot.h"
#include "emulation/kernels/cuda/gemm.h"
#include "emulation/kernels/cuda/model_gemm.h"
#include "emulation/kernels/rounded_gemm.h"
#include "emulation/kernels/scalar/kernels.h"
#include "emulation/kernels/simd/kernels.h"

namespace lockstep {
namespace {

cuda::Device& gpu() {
  return *cuda::gpu_device();
}

template <SoftwareKernels kSoftware, cuda::Device& (*kDevice)()>
struct DeviceProducts {
  static constexpr bool kContinuesSums = false;
  static bool is_own(const Accumulator& accumulator) {
    return accumulator.kind == AccumulatorKind::kAlignedBlocks;
  }
  static void gemm(const GemmArgs<float>& args) {
    cuda::cuda_gemm(args, kSoftware().f32.gemm, kDevice());
  }
  static bool rounded_gemm(const GemmArgs<float>& args, const GemmRounding& rounding) {
    return cuda::cuda_rounded_gemm(args, rounding, kSoftware().f32.gemm, kDevice());
  }
};

template <SoftwareKernels kSoftware, cuda::Device& (*kDevice)(), int64_t kLeastProducts>
struct ModelledProducts {
  static constexpr bool kContinuesSums = true;
  static bool is_own(const Accumulator& accumulator) {
    return accumulator.kind == AccumulatorKind::kAlignedBlocks || is_float_chain(accumulator);
  }
  static void gemm(const GemmArgs<float>& args) {
    cuda::model_gemm(args, kSoftware().f32.gemm, kDevice(), kLeastProducts);
  }
  static bool rounded_gemm(const GemmArgs<float>& args, const GemmRounding& rounding) {
    return cuda::model_rounded_gemm(args, rounding, kDevice(), kLeastProducts);
  }
};

// Factors are rounded on the host, where they are; results on the device.
template <typename Products, SoftwareKernels kSoftware>
void rounded_gemm_on_device(const RoundedGemmArgs<float>& args) {
  const QuantizeFunction<float> quantize = kSoftware().f32.quantize;
  const RoundedFactors<float> factors(args, quantize);
  const RoundedGemmArgs<float> rest = factors.rest();
  if (rest.c.spec.format != nullptr && Products::rounded_gemm(rest.product, rest.c)) return;
  rounded_gemm_in_passes(rest, Products::gemm, quantize);
}

template <typename Products, SoftwareKernels kSoftware>
void use_device(KernelSet& set) {
  use_products<Products, kSoftware>(set);
  set.f32.rounded_gemm = rounded_gemm_on_device<Products, kSoftware>;
  set.uses_device = true;
}

template <SoftwareKernels kSoftware, cuda::Device& (*kDevice)()>
KernelSet make_set(std::string_view name, std::string_view help) {
  KernelSet set = kSoftware();
  set.name = name;
  set.help = help;
  use_device<DeviceProducts<kSoftware, kDevice>, kSoftware>(set);
  set.f32.stacked_gemm = [](const Kernels<float>& kernels, const StackedGemm<float>& stack) {
    const Kernels<float>& software = kSoftware().f32;
    if (cuda::cuda_stacked_gemm(stack, software.gemm, kDevice())) return;
    software.stacked_gemm(kernels, stack);
  };
  set.take_device_work = [] { return cuda::take_work(kDevice()); };
  return set;
}

}  // namespace

template <SoftwareKernels kSoftware>
const KernelSet& cuda_kernels() {
  static const KernelSet set =
      make_set<kSoftware, gpu>("cuda", "cuBLAS on the tensor cores of an NVIDIA GPU");
  return set;
}

template <SoftwareKernels kSoftware>
const KernelSet& cuda_host_kernels() {
  static const KernelSet set = make_set<kSoftware, cuda::host_device>(
      "cuda-host", "the cuda engine on the host, which stands in for an H100");
  return set;
}

template <SoftwareKernels kSoftware>
const KernelSet& modelled_kernels() {
  static const KernelSet set = [] {
    KernelSet own = kSoftware();
    use_device<ModelledProducts<kSoftware, gpu, cuda::kLeastGpuProducts>, kSoftware>(own);
    return own;
  }();
  return set;
}

template <SoftwareKernels kSoftware>
const KernelSet& modelled_host_kernels() {
  static const KernelSet set = [] {
    KernelSet own = kSoftware();
    use_device<ModelledProducts<kSoftware, cuda::host_device, 0>, kSoftware>(own);
    return own;
  }();
  return set;
}

template const KernelSet& cuda_kernels<scalar_kernels>();
template const KernelSet& cuda_kernels<avx2_kernels>();
template const KernelSet& cuda_kernels<avx512_kernels>();
template const KernelSet& cuda_host_kernels<scalar_kernels>();
template const KernelSet& cuda_host_kernels<avx2_kernels>();
template const KernelSet& cuda_host_kernels<avx512_kernels>();
template const KernelSet& modelled_kernels<scalar_kernels>();
template const KernelSet& modelled_kernels<avx2_kernels>();
template const KernelSet& modelled_kernels<avx512_kernels>();
template const KernelSet& modelled_host_kernels<scalar_kernels>();
template const KernelSet& modelled_host_kernels<avx2_kernels>();
template const KernelSet& modelled_host_kernels<avx512_kernels>();

}  // namespace lockstep
