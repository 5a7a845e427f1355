// See lane_frame.h.
#include "src/train/lane/lane_frame.h"

#include <cmath>

#include "emulation/kernels/quantize.h"
#include "src/execute/storage.h"

namespace lockstep {

ExecutionKey LaneFrame::key() const {
  return {options().seed, policy().stream, static_cast<uint64_t>(micro_step)};
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
