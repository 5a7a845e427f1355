#include "emulation/kernels/cpu/kernels.h"

#include "emulation/kernels/cpu/gemm.h"
#include "emulation/kernels/cpu/quantize.h"
#include "emulation/kernels/scalar/kernels.h"
#include "emulation/kernels/simd/kernels.h"

namespace lockstep {
namespace {

template <SoftwareKernels kSoftware>
struct UnitProducts {
  static constexpr bool kContinuesSums = true;
  static bool is_own(const Accumulator& accumulator) { return is_unit_sum(accumulator); }
  static void gemm(const GemmArgs<float>& args) { cpu_gemm(args, kSoftware().f32.gemm); }
};

template <SoftwareKernels kSoftware>
KernelSet make_set() {
  KernelSet set = kSoftware();
  set.name = "cpu";
  set.help = "the CPU's own F16C, AVX512-BF16, AVX512-FP16 and AMX instructions";
  set.f32.quantize = [](const float* before, float* after, int64_t count, const QuantizeSpec& spec,
                        TensorStats* stats) {
    cpu_quantize(before, after, count, spec, stats, kSoftware().f32.quantize);
  };
  set.f32.fill_and_quantize = nullptr;
  use_products<UnitProducts<kSoftware>, kSoftware>(set);
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
