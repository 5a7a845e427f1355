// Merging of records, and the error of the reference.
#include "src/execute/site_record.h"

#include <cmath>

namespace lockstep {

void SiteRecord::merge(const SiteRecord& other) {
  health.merge(other.health);
  effect.merge(other.effect);
  update.merge(other.update);
  decisions.merge(other.decisions);
  if (other.counted) {
    counted = true;
    stats.merge(other.stats);
    return;
  }
  if (!other.measured) return;
  if (!measured) {
    measured = true;
    scale = other.scale;
    stats = other.stats;
    error = other.error;
    return;
  }
  TensorStats theirs = other.stats;
  if (const double ratio = scale / other.scale; other.scale != scale && std::isfinite(ratio)) {
    theirs.abs_max *= ratio;
    theirs.abs_min_nonzero *= ratio;
    theirs.sum_sq *= ratio * ratio;
    theirs.round_err_sq *= ratio * ratio;
  }
  stats.merge(theirs);
  error.merge(other.error);
}

// The reference is compared with itself: e = 0, and dot_ref = ref_sq = sum of squares. A value that
// is finite before its rounding stays finite, since the reference's formats are FP32.
ErrorStats error_of_reference(const TensorStats& stats) {
  ErrorStats error;
  error.compared = stats.count - stats.exponent_histogram[kHistogramBins - 1] - stats.to_infinity;
  error.dot_ref = error.ref_sq = stats.sum_sq;
  return error;
}

}  // namespace lockstep
