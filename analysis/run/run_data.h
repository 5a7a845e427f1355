// The counts of one step of one lane, as plain vectors by site id.
// The analysis functions take these, so that they can be tested with numbers written by hand; only
// run_data.cc knows that they come from a run file.
#pragma once

#include <cstdint>
#include <vector>

#include "src/record/run/run_file.h"

namespace lockstep {

// The counts that show what rounding did. A site with count 0 was not measured in this lane.
struct StepCounts {
  bool is_measured = true;  // false: only roundings were counted, and no infinity is seen coming in
  std::vector<uint64_t> count, source_zero, to_zero, to_subnormal, to_infinity, saturated, nan;
  std::vector<double> abs_max;  // NaN where not measured; infinite where an infinity came in

  explicit StepCounts(size_t sites = 0);
  size_t size() const { return count.size(); }
  // A NaN or an infinity was seen entering or leaving the rounding at this site.
  bool nonfinite(size_t site) const;
};

// The first step that was not skipped and whose loss is not finite, -1: none. A skipped step's
// values are discarded, so only values of other steps can harm the lane; from this step on every
// site holds NaN, which would hide what happened before. Requires: of one length.
int64_t first_nonfinite_loss(const std::vector<double>& loss,
                             const std::vector<ScalerRecord>& scalers);

StepCounts read_counts(const RunFile& run, int lane, int64_t step);

}  // namespace lockstep
