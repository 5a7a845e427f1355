// THE list of the kernels that devices run.
// A kernel is plain data with `count()` and `operator()(i)`: a launch calls it once for every i in
// [0, count), in any order and at once. Its arrays are in the device's memory. It uses no shared
// memory, so that the host runs, and tests, the source that a GPU runs.
#pragma once

#include <string>
#include <variant>

#include "emulation/kernels/cuda/model_product.h"
#include "emulation/kernels/cuda/rounding_pass.h"

namespace lockstep::cuda {

using Kernel = std::variant<BlockProduct, ChainProduct, RoundElements, FindRanges, MeasureLanes>;

// On the machine's first GPU; returns when it has ended. Both are defined in builds with CUDA only.
// Returns: what went wrong, or "".
std::string launch_on_gpu(const Kernel& kernel);
// Why the GPU cannot run them ("this build has no code for sm_61"), or "". Requires: a GPU.
std::string why_no_kernels();

}  // namespace lockstep::cuda
