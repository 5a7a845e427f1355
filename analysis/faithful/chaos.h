// Measures the part of a loss, a gradient, or a buffer after the step that FP32 does not determine.
// Repeats the step from weights moved by one ulp: FP32 does not determine what changes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "analysis/faithful/captured_step.h"
#include "src/capture/capture.h"

namespace lockstep {

// The values with every nonzero weight of the graph one ulp up or down, by a seeded sign.
Tensors twin_of(const Graph& graph, Tensors values, uint64_t seed = 1);

// By parameter or buffer: the largest distance between its gradient (its value after the step) and
// those of kChaosTwins twins.
using Chaos = std::map<std::string, double>;
struct StepChaos {
  double loss = 0;  // the same of the loss
  Chaos gradients;
};
using StepFromValues = std::function<ComputedStep(const Tensors& values)>;
StepChaos step_chaos(const Capture& capture, const CapturedVerify& verify, const ComputedStep& step,
                     const StepFromValues& run);
Chaos buffer_chaos(const Capture& capture, const CapturedVerify& verify, const Tensors& buffers,
                   const StepFromValues& run);

}  // namespace lockstep
