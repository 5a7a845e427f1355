// Defects of casts and sums.
#include <map>
#include <mutex>
#include <vector>

#include "emulation/accumulator/accumulator.h"
#include "tests/tools/planted/defect.h"

namespace lockstep {
namespace {

template <typename T>
void truncate(const T* before, T* after, int64_t count, const QuantizeSpec& spec,
              TensorStats* stats) {
  QuantizeSpec wrong = spec;
  wrong.rounding = Rounding::kTowardZero;
  true_kernels_of<T>().quantize(before, after, count, wrong, stats);
}

template <typename T>
void flush(const T* before, T* after, int64_t count, const QuantizeSpec& spec, TensorStats* stats) {
  QuantizeSpec wrong = spec;
  if (spec.format != nullptr && !spec.measure_only &&
      spec.format->subnormals == SubnormalRule::kKept) {
    wrong.format = &find_format(spec.format->name + "+flush_out");
  }
  true_kernels_of<T>().quantize(before, after, count, wrong, stats);
}

// Each weight before its last update, by the address of its elements.
template <typename T>
struct OldWeights {
  std::mutex lock;
  std::map<const T*, std::vector<T>> values;
};
template <typename T>
OldWeights<T> old_weights;

template <typename T>
void update_and_keep_old(const UpdateRule& rule, const OptimizerArrays<T>& arrays,
                         UpdateStats* stats) {
  {
    const std::lock_guard held(old_weights<T>.lock);
    old_weights<T>.values[arrays.weight].assign(arrays.weight, arrays.weight + arrays.count);
  }
  true_kernels_of<T>().optimizer(rule, arrays, stats);
}

template <typename T>
void cast_old_weights(const T* before, T* after, int64_t count, const QuantizeSpec& spec,
                      TensorStats* stats) {
  if (before != after && !spec.measure_only) {
    const std::lock_guard held(old_weights<T>.lock);
    const auto old = old_weights<T>.values.find(before);
    if (old != old_weights<T>.values.end() && std::ssize(old->second) == count) {
      before = old->second.data();
    }
  }
  true_kernels_of<T>().quantize(before, after, count, spec, stats);
}

template <typename T>
void sum_in_fp16(const GemmArgs<T>& args) {
  GemmArgs<T> wrong = args;
  wrong.accumulator = &find_accumulator("fp16");
  true_kernels_of<T>().gemm(wrong);
}

template <typename T>
void sum_without_last(const GemmArgs<T>& args) {
  GemmArgs<T> wrong = args;
  wrong.k -= wrong.k > 1 ? 1 : 0;
  true_kernels_of<T>().gemm(wrong);
}

// The second half of k first.
template <typename T>
void sum_halves_swapped(const GemmArgs<T>& args) {
  const int64_t half = args.k / 2;
  if (half == 0) return true_kernels_of<T>().gemm(args);
  GemmArgs<T> second = args, first = args;
  second.k = args.k - half;
  second.a += args.transpose_a ? half * args.lda : half;
  second.b += args.transpose_b ? half : half * args.ldb;
  first.k = half;
  first.start_from_c = true;
  second.kept_b = first.kept_b = nullptr;  // these are two factors
  true_kernels_of<T>().gemm(second);
  true_kernels_of<T>().gemm(first);
}

template <typename T>
void channel_sum_without_last(const T* x, T* y, int64_t outer, int64_t channels, int64_t inner,
                              const Accumulator& accumulator) {
  true_kernels_of<T>().channel_sum(x, y, outer > 1 ? outer - 1 : outer, channels, inner,
                                   accumulator);
}

constexpr Defect kDefects[] = {
    {"truncating_casts", "casts drop the bits that do not fit",
     [](KernelSet& set) {
       plant_in_both(set, []<typename T>(Kernels<T>& k) {
         k.quantize = truncate<T>;
         use_passes(k);
       });
     }},
    {"flushing_casts", "casts turn subnormals into zeros",
     [](KernelSet& set) {
       plant_in_both(set, []<typename T>(Kernels<T>& k) {
         k.quantize = flush<T>;
         use_passes(k);
       });
     }},
    {"stale_casts", "a weight is cast from its values before the last update",
     [](KernelSet& set) {
       plant_in_both(set, []<typename T>(Kernels<T>& k) {
         k.optimizer = update_and_keep_old<T>;
         k.quantize = cast_old_weights<T>;
         use_passes(k);
       });
     }},
    {"fp16_sums", "matrix products are summed in FP16",
     [](KernelSet& set) {
       set.f32.gemm = sum_in_fp16<float>;
       use_passes(set.f32);
     }},
    {"short_sums", "matrix products lack the last k",
     [](KernelSet& set) {
       plant_in_both(set, []<typename T>(Kernels<T>& k) {
         k.gemm = sum_without_last<T>;
         use_passes(k);
       });
     }},
    {"short_bias_gradients", "sums over a batch lack its last element",
     [](KernelSet& set) {
       plant_in_both(
           set, []<typename T>(Kernels<T>& k) { k.channel_sum = channel_sum_without_last<T>; });
     }},
    {"reordered_sums", "harmless: matrix products sum the second half of k first",
     [](KernelSet& set) {
       plant_in_both(set, []<typename T>(Kernels<T>& k) {
         k.gemm = sum_halves_swapped<T>;
         use_passes(k);
       });
     }},
};

}  // namespace

std::span<const Defect> rounding_defects() {
  return kDefects;
}

}  // namespace lockstep
