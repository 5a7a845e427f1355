// See step_evidence.h.
#include "analysis/findings/step_evidence.h"

#include <cmath>

namespace lockstep {

bool StepEvidence::nonfinite(size_t site) const {
  return count[site] > 0 && (to_infinity[site] > 0 || nan[site] > 0 || std::isinf(abs_max[site]));
}

StepEvidence read_evidence(const RunFile& run, int lane, int64_t step) {
  return {.count = run.count(lane, "count", step),
          .source_zero = run.count(lane, "source_zero", step),
          .to_zero = run.count(lane, "to_zero", step),
          .to_infinity = run.count(lane, "to_infinity", step),
          .saturated = run.count(lane, "saturated", step),
          .nan = run.count(lane, "nan", step),
          .abs_max = run.moment(lane, "abs_max", step),
          .sum_sq = run.moment(lane, "sum_sq", step),
          .round_err_sq = run.moment(lane, "round_err_sq", step),
          .err_sq = run.moment(lane, "err_sq", step),
          .ref_sq = run.moment(lane, "ref_sq", step),
          .scale = run.scale(lane, step)};
}

}  // namespace lockstep
