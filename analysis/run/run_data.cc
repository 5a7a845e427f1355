// Reads one step's counts of one lane from a run file.
#include "analysis/run/run_data.h"

#include <cmath>
#include <limits>

namespace lockstep {

StepCounts::StepCounts(size_t sites)
    : count(sites),
      source_zero(sites),
      to_zero(sites),
      to_subnormal(sites),
      to_infinity(sites),
      saturated(sites),
      nan(sites),
      abs_max(sites, std::numeric_limits<double>::quiet_NaN()) {}

bool StepCounts::nonfinite(size_t site) const {
  if (count[site] == 0) return false;
  return to_infinity[site] > 0 || nan[site] > 0 || std::isinf(abs_max[site]);
}

int64_t first_nonfinite_loss(const std::vector<double>& loss,
                             const std::vector<ScalerRecord>& scalers) {
  for (size_t i = 0; i < loss.size(); ++i) {
    if (!std::isfinite(loss[i]) && !scalers[i].skipped) return static_cast<int64_t>(i);
  }
  return -1;
}

StepCounts read_counts(const RunFile& run, int lane, int64_t step) {
  StepCounts counts;
  counts.is_measured = run.is_measured(step);
  counts.count = run.count(lane, "count", step);
  counts.source_zero = run.count(lane, "source_zero", step);
  counts.to_zero = run.count(lane, "to_zero", step);
  counts.to_subnormal = run.count(lane, "to_subnormal", step);
  counts.to_infinity = run.count(lane, "to_infinity", step);
  counts.saturated = run.count(lane, "saturated", step);
  counts.nan = run.count(lane, "nan", step);
  counts.abs_max = run.moment(lane, "abs_max", step);
  return counts;
}

}  // namespace lockstep
