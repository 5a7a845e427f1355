// Everything that findings need of one step of one lane, as vectors by site id.
#pragma once

#include <cstdint>
#include <vector>

#include "src/record/run/run_file.h"

namespace lockstep {

struct StepEvidence {
  std::vector<uint64_t> count, source_zero, to_zero, to_infinity, saturated, nan;
  // NaN where not measured. abs_max is infinite where an infinity came in.
  std::vector<double> abs_max, sum_sq, round_err_sq, err_sq, ref_sq, scale;

  // A NaN or an infinity was seen entering or leaving the rounding at this site.
  bool nonfinite(size_t site) const;
  bool all_zero(size_t site) const {
    return count[site] > 0 && source_zero[site] + to_zero[site] == count[site];
  }
};
StepEvidence read_evidence(const RunFile& run, int lane, int64_t step);

// The last measurement at each storage site of one lane: most stored values are rounded only once.
class StoredEvidence {
 public:
  explicit StoredEvidence(const SiteTable& sites);
  // Requires: steps in ascending order. Fills in storage sites that the step does not measure.
  void complete(StepEvidence& step);

 private:
  std::vector<size_t> sites_;
  StepEvidence last_;
};

}  // namespace lockstep
