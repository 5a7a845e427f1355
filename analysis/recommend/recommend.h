// Which layers may use a low-precision format, and with which loss scale? A first answer from
// ranges alone. Reads the exponent histograms of the reference lane; nothing is searched or rerun.
// Ignores rounding errors: a layer whose numbers fit may still need more significand bits.
#pragma once

#include <string>

#include "analysis/recommend/scale_interval.h"
#include "src/policy/policy.h"
#include "src/record/run/run_file.h"

namespace lockstep {

struct Recommendation {
  Policy base;  // the preset that the policy extends
  RangeTable ranges;
  std::string policy;  // TOML text that find_policy accepts
};

// `format`: fp16 or bf16. Throws: InputError: a format without a preset to start from, a run
// without histograms.
Recommendation recommend(const RunFile& run, const std::string& format);

// The policy file: `base` with a static loss scale and FP32 rules, the evidence in comments.
std::string policy_toml(const Policy& base, const RangeTable& ranges, const std::string& evidence);

}  // namespace lockstep
