// Compares two runs number by number.
// Takes the table of recorded quantities (src/record/run/quantities.h): bit hashes, counts and
// scaler states exactly, sums and losses within a tolerance that covers another order of summation
// and nothing more.
//
// Fails closed. A value that is missing or non-finite on one side is a difference at any tolerance;
// runs with different set-ups are never compared and never pass.
#pragma once

#include "analysis/exact/exact_result.h"
#include "src/record/run/run_reader.h"

namespace lockstep {

ExactResult compare_exactly(const RunFile& run, const RunFile& baseline,
                            const ExactOptions& options);

// How far apart two floats are: 0 when equal (NaN equals NaN, an infinity itself), infinity when
// one side is not finite or the signs of infinities differ, else |a - b| / magnitude. `magnitude`:
// the size to which a rounding error is relative, at least max(|a|, |b|).
double relative_difference(double run, double baseline, double magnitude);

}  // namespace lockstep
