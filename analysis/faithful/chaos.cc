// Computes the part of a gradient that FP32 does not determine. A network whose weights are moved
// by one ulp is an equally good version of the model. Where a gradient is a small difference of
// large numbers, the gradients of the two are far apart.
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

GradientChaos gradient_chaos(const Capture& capture, const CapturedVerify& verify,
                             const Tensors& gradients, const StepFromValues& run) {
  GradientChaos chaos;
  for (uint64_t seed = 1; seed <= kChaosTwins; ++seed) {
    const ComputedStep twin = run(twin_of(capture.graphs.front(), verify.before.values, seed));
    for (const auto& [name, gradient] : gradients) {
      const Tensor* moved = find_named(twin.gradients, name);
      if (moved == nullptr) continue;
      const Distance d = distance(*moved, gradient, find_named(verify.noise, name));
      chaos[name] = std::max(chaos[name], d.difference);
    }
  }
  return chaos;
}

}  // namespace lockstep
