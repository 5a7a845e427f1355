// Shows how errors grow through the depth of the network.
// In one step, layer by layer in execution order, of the layer's last output:
//
//   total   sqrt(err_sq / ref_sq): against the reference; what came in from earlier layers counts
//   local   sqrt(round_err_sq / sum_sq): the rounding of this output alone
//
// The step is the first one in which lane and reference have the same weights and nothing is
// infinite, so that the total is the step's own.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "src/record/run/run_file.h"

namespace lockstep {

struct LayerError {
  std::string layer;
  int32_t site = -1;
  double total = 0, local = 0;  // relative; NaN: not measured
};
struct ErrorGrowth {
  int64_t step = 0;
  std::vector<LayerError> forward, backward;  // activations; gradients of activations
};
// Nothing: no step was found, or the lane is the reference.
std::optional<ErrorGrowth> error_growth(const RunFile& run, int lane);

}  // namespace lockstep
