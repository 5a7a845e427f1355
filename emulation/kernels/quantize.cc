// The public functions: take spans, call the active kernel set.
#include "emulation/kernels/quantize.h"

#include <stdexcept>
#include <type_traits>

#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/scalar/quantize.h"

namespace lockstep {
namespace {

void check_sizes(size_t a, size_t b) {
  if (a == b) return;
  throw std::logic_error("arrays of " + std::to_string(a) + " and " + std::to_string(b) +
                         " elements, must be equal");
}

}  // namespace

template <typename T>
void quantize(std::span<const T> before, std::span<T> after, const QuantizeSpec& spec,
              TensorStats* stats) {
  if (!spec.measure_only) check_sizes(before.size(), after.size());
  active_kernels().of<T>().quantize(before.data(), after.data(),
                                    static_cast<int64_t>(before.size()), spec, stats);
}

template <typename T>
TensorStats observe(std::span<const T> values, const Format& format) {
  TensorStats stats;
  QuantizeSpec spec;
  spec.format = &format;
  spec.measure_only = true;
  quantize<T>(values, {}, spec, &stats);
  return stats;
}

template <typename T, typename R>
ErrorStats compare(std::span<const T> lane, std::span<const R> reference, double scale,
                   const Format& lane_format) {
  check_sizes(lane.size(), reference.size());
  if (!(scale > 0)) throw std::logic_error("compare: scale must be > 0");
  ErrorStats error;
  const auto count = static_cast<int64_t>(lane.size());
  if constexpr (std::is_same_v<R, float>) {
    active_kernels().of<T>().compare(lane.data(), reference.data(), count, scale, lane_format,
                                     &error);
  } else {
    scalar_compare(lane.data(), reference.data(), count, scale, lane_format, &error);
  }
  return error;
}

template void quantize(std::span<const float>, std::span<float>, const QuantizeSpec&, TensorStats*);
template void quantize(std::span<const double>, std::span<double>, const QuantizeSpec&,
                       TensorStats*);
template TensorStats observe(std::span<const float>, const Format&);
template TensorStats observe(std::span<const double>, const Format&);
template ErrorStats compare(std::span<const float>, std::span<const float>, double, const Format&);
template ErrorStats compare(std::span<const double>, std::span<const float>, double, const Format&);
template ErrorStats compare(std::span<const float>, std::span<const double>, double, const Format&);
template ErrorStats compare(std::span<const double>, std::span<const double>, double,
                            const Format&);

}  // namespace lockstep
