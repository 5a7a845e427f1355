// V5 and V6: the optimizer from PyTorch's own gradients, and the loss scaler from its own
// found_inf.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "analysis/faithful/gate_norms.h"
#include "src/policy/loss_scale.h"
#include "src/update/optimizers.h"

namespace lockstep {
namespace {

constexpr double kTiny = 1e-30;  // a state of zeros has no relative difference

// One parameter, stepped in FP32.
struct SteppedParameter {
  Tensor weight;
  std::vector<std::pair<std::string, Tensor>> states;
  int64_t steps = 0;
};

SteppedParameter step_parameter(const Optimizer& row, const HyperNumbers& numbers,
                                const CapturedState& before, const std::string& name,
                                const Tensor& gradient) {
  static const Format* const kFp32 = &find_format("fp32");
  SteppedParameter out;
  out.weight = before.values.at(name);
  const auto steps = before.steps.find(name);
  out.steps = (steps == before.steps.end() ? 0 : steps->second) + 1;
  const auto states = before.optimizer.find(name);
  for (const OptimizerState& state : row.states(numbers)) {
    Tensor start(out.weight.shape(), Container::kF32);
    std::ranges::fill(start.as<float>(), static_cast<float>(state.initial));
    if (states != before.optimizer.end()) {
      if (const Tensor* found = find_named(states->second, std::string(state.name))) start = *found;
    }
    out.states.emplace_back(state.name, std::move(start));
  }
  OptimizerArrays<float> call;
  call.count = out.weight.size();
  call.weight = out.weight.as<float>().data();
  call.grad = gradient.as<float>().data();
  call.state_count = static_cast<int>(out.states.size());
  for (size_t k = 0; k < out.states.size(); ++k) {
    call.states[k] = out.states[k].second.as<float>().data();
  }
  call.step = out.steps;
  call.formats.arithmetic = call.formats.state = call.formats.weight = kFp32;
  optimizer_step(row, numbers, numbers["lr"], call, nullptr);
  return out;
}

// `counts`: torch's optimizer has a step count (SGD has none).
void judge_parameter(const SteppedParameter& ours, const CapturedVerify& verify,
                     const std::string& name, bool counts, Worst& weights, Worst& states,
                     FloorShare& floor, std::vector<std::string>& details) {
  const std::string at = fmt::format("{}, step {}", name, verify.step);
  const Distance d = distance(ours.weight, verify.after.values.at(name));
  weights.take(d.difference, kBoundWeight * d.reference + kBoundWeightAbsolute, at);
  const bool by_floor = kBoundWeightAbsolute > kBoundWeight * d.reference;
  floor.add({1, by_floor ? 1 : 0, 0, d.elements, 0});
  const auto recorded = verify.after.optimizer.find(name);
  if (recorded == verify.after.optimizer.end()) return;
  for (const auto& [state, value] : ours.states) {
    const Tensor* wanted = find_named(recorded->second, state);
    if (wanted == nullptr) continue;
    const Distance off = distance(value, *wanted);
    states.take(off.difference, kBoundState * off.reference + kTiny, at + ", " + state);
  }
  const auto steps = verify.after.steps.find(name);
  if (!counts || steps == verify.after.steps.end() || steps->second == ours.steps) return;
  details.push_back(fmt::format("{}: step count {}, PyTorch {}", at, ours.steps, steps->second));
}

}  // namespace

GateResult gate_v5(const Capture& capture) {
  GateResult gate{.name = "V5", .subject = "optimizer, from PyTorch's FP32 gradients"};
  if (capture.optimizer.empty()) {
    gate.status = GateStatus::kNotApplicable;
    gate.figure = capture.optimizer_class + " is not modelled: gradients only";
    return gate;
  }
  const Optimizer& row = find_optimizer(capture.optimizer);
  Worst weights, states;
  size_t stepped = 0;
  for (const CapturedVerify& verify : capture.verify) {
    if (verify.after.values.empty() || !verify.comparable()) continue;
    const CapturedStep& step = capture.steps.at(static_cast<size_t>(verify.step));
    for (size_t g = 0; g < capture.groups.size(); ++g) {
      const HyperNumbers numbers = numbers_of({capture.optimizer, step.hyper.at(g)});
      for (const std::string& name : capture.groups[g]) {
        const Tensor* gradient = find_named(verify.grads32, name);
        if (gradient == nullptr || !verify.after.values.contains(name)) continue;
        ++stepped;
        judge_parameter(step_parameter(row, numbers, verify.before, name, *gradient), verify, name,
                        row.counts_steps, weights, states, gate.floor, gate.details);
      }
    }
  }
  if (stepped == 0) return gate;
  const bool ok = weights.ratio <= 1 && states.ratio <= 1 && gate.details.empty();
  gate.status = ok ? GateStatus::kPass : GateStatus::kFail;
  gate.figure =
      fmt::format("weights {:.2g} of the bound {:.0e} (worst {}), states {:.2g} of {:.0e}{}",
                  weights.ratio, kBoundWeight, worst_text(weights.where, gate.floor), states.ratio,
                  kBoundState, states.where.empty() ? "" : " (worst " + states.where + ")");
  return gate;
}

GateResult gate_v6(const Capture& capture) {
  GateResult gate{.name = "V6", .subject = "loss scaler, from the captured found_inf"};
  if (!capture.scaler.enabled) {
    gate.status = GateStatus::kNotApplicable;
    gate.figure = "the run had no loss scaler";
    return gate;
  }
  const LossScaler& scaler = find_loss_scaler(capture.scaler.spec.kind);
  LossScaleState state = capture.scaler.start;
  int64_t skipped = 0;
  for (size_t s = 0; s < capture.steps.size(); ++s) {
    const CapturedStep& step = capture.steps[s];
    const auto expect = [&](const char* what, double ours, double theirs) {
      if (ours == theirs || !gate.details.empty()) return;
      gate.details.push_back(
          fmt::format("first difference: step {}, {} {}, PyTorch {}", s, what, ours, theirs));
    };
    expect("scale before", state.scale, step.scale_before);
    expect("stepped", step.found_inf ? 0 : 1, step.stepped ? 1 : 0);
    state = scaler.update(capture.scaler.spec, state, step.found_inf);
    expect("scale after", state.scale, step.scale_after);
    expect("growth_tracker after", static_cast<double>(state.growth_tracker),
           static_cast<double>(step.growth_tracker_after));
    skipped += step.found_inf ? 1 : 0;
  }
  gate.status = gate.details.empty() ? GateStatus::kPass : GateStatus::kFail;
  gate.figure = fmt::format("{} steps, {} skipped, {}", capture.steps.size(), skipped,
                            gate.details.empty() ? "bit-exact" : "not bit-exact");
  return gate;
}

}  // namespace lockstep
