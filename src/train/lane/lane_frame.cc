// See lane_frame.h.
#include "src/train/lane/lane_frame.h"

#include <cmath>

#include "emulation/kernels/quantize.h"
#include "src/execute/storage.h"

namespace lockstep {

ExecutionKey LaneFrame::key() const {
  return {options().seed, policy().stream, static_cast<uint64_t>(micro_step)};
}

GradientFormats LaneFrame::gradient_formats(const Format* own) const {
  const auto or_else = [](const Format* format, const Format* other) {
    return format == nullptr ? other : format;
  };
  const AllReduce& all_reduce = policy().all_reduce;
  const Format* sum = options().accumulate > 1 ? or_else(policy().gradient_sum, own) : own;
  if (options().workers == 1) return {sum, sum, sum};
  return {sum, or_else(all_reduce.format, sum), or_else(all_reduce.result, sum)};
}

QuantizeSpec LaneFrame::rounding_to(const Format* format, int32_t site) const {
  return storage_rounding(format, policy().rounding, key(), static_cast<uint32_t>(site));
}

void LaneFrame::fill(SiteRecord& record, const Tensor& values, const TensorStats& stats,
                     const Format& format, const Tensor* reference, double scale) const {
  record.measured = true;
  record.scale = scale;
  record.stats = stats;
  record.error = {};
  if (reference == nullptr) {
    record.error = error_of_reference(stats);
  } else if (scale > 0 && std::isfinite(scale)) {
    record.error = typed([&]<typename T>(T) {
      return compare<T>(kernels(), values.as<T>(), reference->as<float>(), scale, format);
    });
  }
}

}  // namespace lockstep
