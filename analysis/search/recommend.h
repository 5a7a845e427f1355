// Chooses the layers that may use a low-precision format, and the loss scale: a first answer from
// the ranges of a recorded run alone. Nothing is run. Ignores rounding errors: a layer whose
// numbers fit may still need more significand bits (search.h runs candidates to see).
#pragma once

#include <string>

#include "analysis/candidates/candidate.h"
#include "src/record/run/run_reader.h"

namespace lockstep {

struct Recommendation {
  RangeTable ranges;
  Candidate candidate;
};

// From the exponent histograms of the reference lane. `format`: fp16 or bf16. Throws: InputError: a
// format without a preset to start from, a run without histograms.
Recommendation recommend(const RunFile& run, const std::string& format);

// Autocast with the table's loss scale and FP32 rules, the evidence in comments.
Candidate candidate_of(const RangeTable& ranges, const std::string& evidence);

}  // namespace lockstep
