// Computes the part of a gradient or buffer that FP32 does not determine. A network whose weights
// are moved by one ulp is an equally good version of the model. Where a gradient, or the mean of a
// batch, is a small difference of large numbers, those of the two are far apart.
#include "analysis/faithful/chaos.h"

#include <algorithm>

#include "analysis/faithful/gate_bounds.h"
#include "analysis/faithful/gate_norms.h"
#include "emulation/kernels/active_kernels.h"
#include "src/core/random.h"

namespace lockstep {

Tensors twin_of(const Graph& graph, Tensors values, uint64_t seed) {
  uint32_t index = 0;
  for (const Parameter& p : graph.parameters) {
    const RandomStream signs(seed, RandomPurpose::kTwin, index++);
    const auto weights = values.at(p.name).as<float>();
    active_kernels().f32.move_by_one_ulp(weights.data(), signs, 0,
                                         static_cast<int64_t>(weights.size()));
  }
  return values;
}

namespace {

using Part = Tensors ComputedStep::*;

// leave_out: elements that are not compared, by name.
Chaos chaos_of(Part part, const Capture& capture, const CapturedVerify& verify,
               const Tensors& values, const Masks& leave_out, const StepFromValues& run) {
  Chaos chaos;
  for (uint64_t seed = 1; seed <= kChaosTwins; ++seed) {
    const ComputedStep twin = run(twin_of(capture.graphs.front(), verify.before.values, seed));
    for (const auto& [name, value] : values) {
      const Tensor* moved = find_named(twin.*part, name);
      if (moved == nullptr) continue;
      const Distance d = distance(*moved, value, find_named(leave_out, name));
      chaos[name] = std::max(chaos[name], d.difference);
    }
  }
  return chaos;
}

}  // namespace

Chaos gradient_chaos(const Capture& capture, const CapturedVerify& verify, const Tensors& gradients,
                     const StepFromValues& run) {
  return chaos_of(&ComputedStep::gradients, capture, verify, gradients, verify.noise, run);
}

Chaos buffer_chaos(const Capture& capture, const CapturedVerify& verify, const Tensors& buffers,
                   const StepFromValues& run) {
  return chaos_of(&ComputedStep::buffers, capture, verify, buffers, {}, run);
}

}  // namespace lockstep
