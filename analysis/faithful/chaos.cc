// Computes the part of a loss, gradient or buffer that FP32 does not determine. A network whose
// weights are moved by one ulp is an equally good version of the model. Where a gradient, or the
// mean of a batch, is a small difference of large numbers, those of the two are far apart.
#include "analysis/faithful/chaos.h"

#include <algorithm>
#include <cmath>

#include "analysis/faithful/gate_bounds.h"
#include "analysis/faithful/gate_norms.h"
#include "emulation/kernels/active_kernels.h"
#include "src/core/random.h"

namespace lockstep {

Tensors twin_of(const Graph& graph, Tensors values, uint64_t seed) {
  uint32_t index = 0;
  for (const Parameter& p : graph.parameters) {
    const RandomStream signs(seed, RandomPurpose::kTwin, index++);
    Tensor& w = values.at(p.name);
    if (w.container() == Container::kF64) {
      active_kernels().f64.move_by_one_ulp(w.as<double>().data(), signs, 0, w.size());
    } else {
      active_kernels().f32.move_by_one_ulp(w.as<float>().data(), signs, 0, w.size());
    }
  }
  return values;
}

namespace {

void for_twins(const Graph& graph, const Tensors& values, const StepFromValues& run,
               const std::function<void(const ComputedStep&)>& take) {
  for (uint64_t seed = 1; seed <= kChaosTwins; ++seed) take(run(twin_of(graph, values, seed)));
}

// leave_out: elements that are not compared, by name.
void take_distances(const Tensors& moved, const Tensors& values, const Masks& leave_out,
                    Chaos& chaos) {
  for (const auto& [name, value] : values) {
    const Tensor* twin = find_named(moved, name);
    if (twin == nullptr) continue;
    const Distance d = distance(*twin, value, find_named(leave_out, name));
    chaos[name] = std::max(chaos[name], d.difference);
  }
}

void take_step(const ComputedStep& other, const ComputedStep& step, const Masks& leave_out,
               StepChaos& chaos) {
  chaos.loss = std::max(chaos.loss, std::abs(other.loss - step.loss));
  take_distances(other.gradients, step.gradients, leave_out, chaos.gradients);
}

}  // namespace

StepChaos step_chaos(const Graph& graph, const Tensors& values, const ComputedStep& step,
                     const Masks& leave_out, const StepFromValues& run) {
  StepChaos chaos;
  for_twins(graph, values, run,
            [&](const ComputedStep& twin) { take_step(twin, step, leave_out, chaos); });
  return chaos;
}

StepChaos with_moved_results(StepChaos chaos, const ComputedStep& step, const Masks& leave_out,
                             const std::function<ComputedStep(uint64_t)>& run) {
  for (uint64_t seed = 1; seed <= kChaosTwins; ++seed) {
    take_step(run(seed), step, leave_out, chaos);
  }
  return chaos;
}

Chaos buffer_chaos(const Graph& graph, const Tensors& values, const Tensors& buffers,
                   const StepFromValues& run) {
  Chaos chaos;
  for_twins(graph, values, run,
            [&](const ComputedStep& twin) { take_distances(twin.buffers, buffers, {}, chaos); });
  return chaos;
}

}  // namespace lockstep
