// The kernel sets of the software engine: scalar, and one per instruction set with what it speeds
// up; and the set of the `cpu` engine on top of each.
#include "emulation/kernels/kernel_set.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "emulation/kernels/cpu/conv2d.h"
#include "emulation/kernels/cpu/gemm.h"
#include "emulation/kernels/cpu/quantize.h"
#include "emulation/kernels/scalar/batch_norm.h"
#include "emulation/kernels/scalar/block_quantize.h"
#include "emulation/kernels/scalar/conv2d.h"
#include "emulation/kernels/scalar/elementwise.h"
#include "emulation/kernels/scalar/functions.h"
#include "emulation/kernels/scalar/gemm.h"
#include "emulation/kernels/scalar/loss.h"
#include "emulation/kernels/scalar/pool2d.h"
#include "emulation/kernels/scalar/quantize.h"
#include "emulation/kernels/scalar/reduce.h"
#include "emulation/kernels/scalar/row_norm.h"
#include "emulation/kernels/scalar/softmax.h"
#include "emulation/kernels/simd/block_quantize.h"
#include "emulation/kernels/simd/conv2d.h"
#include "emulation/kernels/simd/elementwise.h"
#include "emulation/kernels/simd/functions.h"
#include "emulation/kernels/simd/gemm.h"
#include "emulation/kernels/simd/pool2d.h"
#include "emulation/kernels/simd/quantize.h"
#include "emulation/kernels/simd/reduce.h"
#include "emulation/kernels/simd/row_norm.h"
#include "emulation/kernels/simd/targets.h"
#include "src/core/error.h"

namespace lockstep {
namespace {

template <typename T>
constexpr Kernels<T> make_scalar() {
  return {
      .quantize = scalar_quantize<T>,
      .quantize_blocks = scalar_quantize_blocks<T>,
      .finite_abs_max = scalar_finite_abs_max<T>,
      .compare = scalar_compare<T, float>,
      .gemm = scalar_gemm<T>,
      .conv2d_forward = scalar_conv2d_forward<T>,
      .conv2d_backward_input = scalar_conv2d_backward_input<T>,
      .conv2d_backward_weight = scalar_conv2d_backward_weight<T>,
      .channel_sum = scalar_channel_sum<T>,
      .add = scalar_add<T>,
      .mul = scalar_mul<T>,
      .scale = scalar_scale<T>,
      .relu = scalar_relu<T>,
      .relu_backward = scalar_relu_backward<T>,
      .unary = scalar_unary<T>,
      .unary_backward = scalar_unary_backward<T>,
      .binary = scalar_binary<T>,
      .max_pool2d = scalar_max_pool2d<T>,
      .max_pool2d_backward = scalar_max_pool2d_backward<T>,
      .row = kScalarRow<T>,
      .batch_norm = scalar_batch_norm<T>,
      .batch_norm_backward = scalar_batch_norm_backward<T>,
      .row_norm = scalar_row_norm<T>,
      .row_norm_backward = scalar_row_norm_backward<T>,
      .softmax = scalar_softmax<T>,
      .softmax_backward = scalar_softmax_backward<T>,
      .log_softmax = scalar_log_softmax<T>,
      .log_softmax_backward = scalar_log_softmax_backward<T>,
      .cross_entropy = scalar_cross_entropy<T>,
      .cross_entropy_backward = scalar_cross_entropy_backward<T>,
  };
}

constexpr KernelSet kScalar = {"scalar", "plain loops: the definition of every result",
                               make_scalar<float>(), make_scalar<double>()};

KernelSet make_avx2() {
  KernelSet set = kScalar;
  set.name = "avx2";
  set.help = "AVX2 and FMA, 8 floats wide";
  set.f32.quantize = avx2_quantize;
  set.f32.compare = avx2_compare;
  set.f32.quantize_blocks = avx2_quantize_blocks;
  set.f32.finite_abs_max = avx2_finite_abs_max;
  use_avx2_sums(set.f32);
  use_avx2_sums(set.f64);
  use_avx2_elementwise(set.f32);
  use_avx2_elementwise(set.f64);
  use_avx2_functions(set.f32);
  use_avx2_functions(set.f64);
  use_avx2_row_norm(set);
  set.f32.max_pool2d = avx2_max_pool2d;
  set.f32.gemm = avx2_gemm;
  set.f32.rounded_gemm = avx2_rounded_gemm;
  set.f64.gemm = avx2_gemm;
  set.f32.conv2d_forward = avx2_conv2d_forward;
  set.f64.conv2d_forward = avx2_conv2d_forward;
  set.f32.conv2d_backward_input = avx2_conv2d_backward_input;
  set.f64.conv2d_backward_input = avx2_conv2d_backward_input;
  set.f32.conv2d_backward_weight = avx2_conv2d_backward_weight;
  set.f64.conv2d_backward_weight = avx2_conv2d_backward_weight;
  return set;
}

KernelSet make_avx512() {
  KernelSet set = kScalar;
  set.name = "avx512";
  set.help = "AVX-512 F, BW, CD, DQ and VL, 16 floats wide";
  set.f32.quantize = avx512_quantize;
  set.f32.compare = avx512_compare;
  set.f32.quantize_blocks = avx512_quantize_blocks;
  set.f32.finite_abs_max = avx512_finite_abs_max;
  use_avx512_sums(set.f32);
  use_avx512_sums(set.f64);
  use_avx512_elementwise(set.f32);
  use_avx512_elementwise(set.f64);
  use_avx512_functions(set.f32);
  use_avx512_functions(set.f64);
  use_avx512_row_norm(set);
  set.f32.max_pool2d = avx512_max_pool2d;
  set.f32.gemm = avx512_gemm;
  set.f32.rounded_gemm = avx512_rounded_gemm;
  set.f64.gemm = avx512_gemm;
  set.f32.conv2d_forward = avx512_conv2d_forward;
  set.f64.conv2d_forward = avx512_conv2d_forward;
  set.f32.conv2d_backward_input = avx512_conv2d_backward_input;
  set.f64.conv2d_backward_input = avx512_conv2d_backward_input;
  set.f32.conv2d_backward_weight = avx512_conv2d_backward_weight;
  set.f64.conv2d_backward_weight = avx512_conv2d_backward_weight;
  return set;
}

KernelSet make_cpu(const KernelSet& software) {
  KernelSet set = software;
  set.name = "cpu";
  set.help = "the CPU's own F16C, AVX512-BF16, AVX512-FP16 and AMX instructions";
  set.f32.quantize = cpu_quantize;
  set.f32.gemm = cpu_gemm;
  set.f32.rounded_gemm = nullptr;
  set.f32.conv2d_forward = cpu_conv2d_forward;
  set.f32.conv2d_backward_input = cpu_conv2d_backward_input;
  set.f32.conv2d_backward_weight = cpu_conv2d_backward_weight;
  return set;
}

// Every set by name, also those this CPU cannot run, so that an error can tell the two apart.
struct NamedSet {
  const KernelSet* set;
  bool (*runs_here)();
};
std::span<const NamedSet> all_sets() {
  static const KernelSet avx2 = make_avx2(), avx512 = make_avx512();
  static const NamedSet sets[] = {
      {&kScalar, [] { return true; }}, {&avx2, cpu_has_avx2}, {&avx512, cpu_has_avx512}};
  return sets;
}

std::atomic<const KernelSet*> chosen{nullptr};

}  // namespace

const KernelSet& scalar_kernels() {
  return kScalar;
}

std::span<const KernelSet* const> available_kernel_sets() {
  static const std::vector<const KernelSet*> sets = [] {
    std::vector<const KernelSet*> found;
    for (const NamedSet& named : all_sets()) {
      if (named.runs_here()) found.push_back(named.set);
    }
    return found;
  }();
  return sets;
}

const KernelSet& active_kernels() {
  const KernelSet* set = chosen.load(std::memory_order_relaxed);
  return set != nullptr ? *set : *available_kernel_sets().back();
}

const KernelSet& cpu_engine_kernels() {
  static const std::vector<KernelSet> sets = [] {
    std::vector<KernelSet> made;
    for (const KernelSet* software : available_kernel_sets()) made.push_back(make_cpu(*software));
    return made;
  }();
  const auto software = available_kernel_sets();
  const auto at = std::find(software.begin(), software.end(), &active_kernels());
  return sets[static_cast<size_t>(at - software.begin())];
}

void select_kernels(std::string_view name) {
  std::vector<std::string> names;
  for (const NamedSet& named : all_sets()) {
    names.emplace_back(named.set->name);
    if (named.set->name != name) continue;
    if (!named.runs_here()) {
      throw InputError("kernel set '" + std::string(name) + "': this CPU lacks its instructions",
                       "use '" + std::string(available_kernel_sets().back()->name) + "'");
    }
    chosen.store(named.set, std::memory_order_relaxed);
    return;
  }
  throw InputError("kernel set '" + std::string(name) + "': unknown", did_you_mean(name, names));
}

}  // namespace lockstep
