// Judges whether a run is as good as its baseline.
// Matches the two by structure (run_match.h), decides from weights and batches whether the run
// was drawn like the baseline, takes the limits from the ensemble that differs in the same way
// (ensemble.h), and judges every metric. Nothing passes in silence: what is missing or has no
// counterpart is named.
#pragma once

#include "analysis/check/baseline.h"
#include "analysis/check/check_result.h"
#include "src/record/run/run_reader.h"

namespace lockstep {

CheckResult judge_run(const RunFile& run, const Baseline& baseline, const CheckOptions& options);

}  // namespace lockstep
