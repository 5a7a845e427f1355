// V5 and V6: the optimizer, given PyTorch's own gradients, and the loss scaler, given its own
// found_inf.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "analysis/faithful/gate_bounds.h"
#include "analysis/faithful/gate_list.h"
#include "analysis/faithful/gate_norms.h"
#include "emulation/kernels/active_kernels.h"
#include "src/policy/loss_scale.h"
#include "src/update/optimizers.h"
#include "src/update/stored_parameter.h"

namespace lockstep {
namespace {

constexpr double kTiny = 1e-30;  // a state of zeros has no relative difference

// One parameter, stepped in FP32.
struct SteppedParameter {
  StoredParameter stored;
  std::vector<std::string> state_names;
  int64_t steps = 0;
};

SteppedParameter step_parameter(const Optimizer& row, const HyperNumbers& numbers,
                                const CapturedState& before, const std::string& name,
                                const Tensor& gradient) {
  static const Format* const kFp32 = &find_format("fp32");
  SteppedParameter out;
  Tensor& weight = out.stored.weight = before.values.at(name);
  const auto steps = before.steps.find(name);
  out.steps = (steps == before.steps.end() ? 0 : steps->second) + 1;
  const auto states = before.optimizer.find(name);
  for (const OptimizerState& state : row.states(numbers, weight.shape())) {
    Tensor start = state_before_first_step(state, weight.shape(), Container::kF32);
    if (states != before.optimizer.end()) {
      if (const Tensor* found = find_named(states->second, std::string(state.name))) start = *found;
    }
    out.state_names.emplace_back(state.name);
    out.stored.states.push_back(std::move(start));
  }
  OptimizerArrays<float> call = arrays_of<float>(out.stored, gradient, out.steps);
  call.formats.arithmetic = call.formats.state = call.formats.weight = kFp32;
  optimizer_step(active_kernels(), row, numbers, numbers["lr"], call, nullptr);
  return out;
}

// How far two orders of narrow sums may move the weight apart: twice what the narrow numbers
// themselves move it from FP32. 0 for rules without such sums.
double bound_of_narrow_sums(const Optimizer& row, HyperValues values, const CapturedState& before,
                            const std::string& name, const Tensor& gradient,
                            const SteppedParameter& ours) {
  if (row.narrow_sums.empty()) return 0;
  values[std::string(row.narrow_sums)] = 0;
  const HyperNumbers wide = numbers_of({std::string(row.name), values});
  const SteppedParameter exact = step_parameter(row, wide, before, name, gradient);
  return 2 * distance(ours.stored.weight, exact.stored.weight).difference;
}

// `counts`: torch's optimizer has a step count (SGD has none).
void judge_parameter(const SteppedParameter& ours, const CapturedVerify& verify,
                     const std::string& name, bool counts, double more, Worst& weights,
                     Worst& states, FloorShare& floor, std::vector<std::string>& details) {
  const std::string at = fmt::format("{}, step {}", name, verify.step);
  const Distance d = distance(ours.stored.weight, verify.after.values.at(name));
  weights.take(d.difference, kBoundWeight * d.reference + kBoundWeightAbsolute + more, at);
  const bool by_floor = kBoundWeightAbsolute > kBoundWeight * d.reference;
  floor.add({.tensors = 1, .by_floor = by_floor, .elements = d.elements});
  const auto recorded = verify.after.optimizer.find(name);
  if (recorded == verify.after.optimizer.end()) return;
  for (size_t k = 0; k < ours.state_names.size(); ++k) {
    const Tensor* wanted = find_named(recorded->second, ours.state_names[k]);
    if (wanted == nullptr) continue;
    const Distance off = distance(ours.stored.states[k], *wanted);
    states.take(off.difference, kBoundState * off.reference + kTiny,
                at + ", " + ours.state_names[k]);
  }
  const auto steps = verify.after.steps.find(name);
  if (!counts || steps == verify.after.steps.end() || steps->second == ours.steps) return;
  details.push_back(fmt::format("{}: step count {}, PyTorch {}", at, ours.steps, steps->second));
}

// The weights after earlier steps, against those that the capture found before each verify step.
void judge_recorded(const Capture& capture, GateResult& gate) {
  size_t compared = 0;
  for (const CapturedVerify& verify : capture.verify) {
    Tensors weights;
    for (size_t s = 0; s < static_cast<size_t>(verify.step); ++s) {
      for (const auto& [name, after] : capture.steps[s].weights) weights[name] = after;
    }
    for (const auto& [name, after] : weights) {
      ++compared;
      if (after.same_bits(verify.before.values.at(name))) continue;
      gate.details.push_back(fmt::format("{}: not the weights before step {}", name, verify.step));
    }
  }
  if (compared == 0) {
    gate.status = GateStatus::kNotApplicable;
    gate.figure = is_inference(capture)
                      ? "the capture is of inference"
                      : capture.optimizer_class + " has no rule here: its updates are recorded";
    return;
  }
  gate.status = gate.details.empty() ? GateStatus::kPass : GateStatus::kFail;
  gate.figure = fmt::format("recorded updates of {}: {} weights before verify steps, {}",
                            capture.optimizer_class, compared,
                            gate.details.empty() ? "bit-exact" : "not bit-exact");
}

}  // namespace

GateResult gate_v5(const Capture& capture) {
  GateResult gate{.name = "V5", .subject = "optimizer, from PyTorch's FP32 gradients"};
  if (capture.optimizer.empty()) {
    gate.status = GateStatus::kNotApplicable;
    gate.figure = capture.optimizer_class + " is not modelled: gradients only";
    return gate;
  }
  if (records_updates(capture)) {
    judge_recorded(capture, gate);
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
        const SteppedParameter ours = step_parameter(row, numbers, verify.before, name, *gradient);
        const double more =
            bound_of_narrow_sums(row, step.hyper.at(g), verify.before, name, *gradient, ours);
        judge_parameter(ours, verify, name, row.counts_steps, more, weights, states, gate.floor,
                        gate.details);
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
