// The tensors of a run that a policy would hold in a low-precision format, and their magnitudes.
#pragma once

#include <string_view>
#include <vector>

#include "analysis/ranges/scale_interval.h"
#include "src/policy/policy.h"
#include "src/record/run/run_file.h"

namespace lockstep {

// Roles that a policy may hold in a low-precision format; accumulators, masters, optimizer state,
// buffers and the loss stay in FP32.
bool may_be_low(Role role);

// The reference lane's magnitudes at every site that an op computed in `base`'s autocast format
// would touch: inputs, weights, activations and gradients of ops whose class is not kFp32.
std::vector<RangeSample> range_samples(const RunFile& run, const Policy& base);

}  // namespace lockstep
