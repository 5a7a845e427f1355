// See quantize.h.
#include "emulation/kernels/quantize.h"

#include <stdexcept>
#include <string>

namespace lockstep {
namespace {

void check_sizes(size_t a, size_t b) {
  if (a == b) return;
  throw std::logic_error("arrays of " + std::to_string(a) + " and " + std::to_string(b) +
                         " elements, must be equal");
}

}  // namespace

template <typename T>
void quantize(const KernelSet& kernels, std::span<const T> before, std::span<T> after,
              const QuantizeSpec& spec, TensorStats* stats) {
  if (!spec.measure_only) check_sizes(before.size(), after.size());
  kernels.of<T>().quantize(before.data(), after.data(), static_cast<int64_t>(before.size()), spec,
                           stats);
}

template <typename T>
void fill_and_quantize(const KernelSet& kernels, const FillRange& fill, std::span<T> values,
                       const QuantizeSpec& spec, TensorStats* stats) {
  if (spec.measure_only) throw std::logic_error("fill_and_quantize: measures what it rounds");
  const Kernels<T>& set = kernels.of<T>();
  const auto count = static_cast<int64_t>(values.size());
  if (set.fill_and_quantize != nullptr) {
    return set.fill_and_quantize(fill, values.data(), count, spec, stats);
  }
  fill(0, count);
  set.quantize(values.data(), values.data(), count, spec, stats);
}

template <typename T>
TensorStats observe(const KernelSet& kernels, std::span<const T> values, const Format& format,
                    ReferenceComparison* comparison) {
  TensorStats stats;
  QuantizeSpec spec;
  spec.format = &format;
  spec.measure_only = true;
  spec.comparison = comparison;
  quantize<T>(kernels, values, {}, spec, &stats);
  return stats;
}

template <typename T>
ErrorStats compare(const KernelSet& kernels, std::span<const T> lane,
                   std::span<const float> reference, double scale, const Format& lane_format) {
  check_sizes(lane.size(), reference.size());
  if (!(scale > 0)) throw std::logic_error("compare: scale must be > 0");
  ErrorStats error;
  kernels.of<T>().compare(lane.data(), reference.data(), static_cast<int64_t>(lane.size()), scale,
                          lane_format, &error);
  return error;
}

#define LOCKSTEP_INSTANTIATE(T)                                                                   \
  template void quantize(const KernelSet&, std::span<const T>, std::span<T>, const QuantizeSpec&, \
                         TensorStats*);                                                           \
  template void fill_and_quantize(const KernelSet&, const FillRange&, std::span<T>,               \
                                  const QuantizeSpec&, TensorStats*);                             \
  template TensorStats observe(const KernelSet&, std::span<const T>, const Format&,               \
                               ReferenceComparison*);                                             \
  template ErrorStats compare(const KernelSet&, std::span<const T>, std::span<const float>,       \
                              double, const Format&);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep
