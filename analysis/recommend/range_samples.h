// The tensors of a run that a policy would hold in a low-precision format, and their magnitudes.
#pragma once

#include <string_view>
#include <vector>

#include "analysis/recommend/scale_interval.h"
#include "src/policy/policy.h"
#include "src/record/run/run_file.h"

namespace lockstep {

// The reference lane's magnitudes at every site that an op computed in `base`'s autocast format
// would touch: inputs, weights, activations and gradients of ops whose class is not kFp32.
std::vector<RangeSample> range_samples(const RunFile& run, const Policy& base);

}  // namespace lockstep
