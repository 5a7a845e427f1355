// Measures the part of a loss, a gradient, or a buffer after the step that FP32, or FP64, does not
// determine. Repeats the step from weights moved by one ulp: the format does not determine what
// changes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "analysis/faithful/captured_step.h"
#include "src/capture/capture.h"

namespace lockstep {

// The values with every nonzero weight of the graph one ulp of its container up or down, by a
// seeded sign.
Tensors twin_of(const Graph& graph, Tensors values, uint64_t seed = 1);

// By parameter or buffer: the largest distance between its gradient (its value after the step) and
// those of kChaosTwins twins.
using Chaos = std::map<std::string, double>;
struct StepChaos {
  double loss = 0;  // the same of the loss
  Chaos gradients;
};
using StepFromValues = std::function<ComputedStep(const Tensors& values)>;
// values: from which `step` was computed. leave_out: elements that are not compared, by name.
StepChaos step_chaos(const Graph& graph, const Tensors& values, const ComputedStep& step,
                     const Masks& leave_out, const StepFromValues& run);
// The same of kChaosTwins runs in which every number that a node leaves is one ulp off: what
// another order of sums, or other functions, may do. Includes what `chaos` has. run: by seed.
StepChaos with_moved_results(StepChaos chaos, const ComputedStep& step, const Masks& leave_out,
                             const std::function<ComputedStep(uint64_t)>& run);
Chaos buffer_chaos(const Graph& graph, const Tensors& values, const Tensors& buffers,
                   const StepFromValues& run);

}  // namespace lockstep
