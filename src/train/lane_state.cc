// The state that a lane keeps between steps: how it is stored, how a lane restarts from it, and
// which tensors a checkpoint has.
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "emulation/kernels/quantize.h"
#include "src/core/error.h"
#include "src/core/random.h"
#include "src/execute/storage.h"
#include "src/policy/twin_lane.h"
#include "src/train/lane.h"

namespace lockstep {

ExecutionKey Lane::key() const {
  return {context_.options->seed, description_.policy.stream, static_cast<uint64_t>(micro_step_)};
}

QuantizeSpec Lane::rounding_to(const Format* format, int32_t site) const {
  return storage_rounding(format, description_.policy.rounding, key(), static_cast<uint32_t>(site));
}

// Integers have no site, and nothing to round.
QuantizeSpec Lane::buffer_rounding(const std::string& name) const {
  const auto site = context_.stored.find("b:" + name);
  return rounding_to(runner_->buffer_format(name),
                     site == context_.stored.end() ? -1 : site->second);
}

void Lane::store_measured(const std::string& value_id, const Tensor& exact, Tensor& to,
                          const QuantizeSpec& spec) {
  const auto site = context_.stored.find(value_id);
  if (site == context_.stored.end() || !measures()) {
    store(kernels(), exact, to, spec);
    return;
  }
  SiteRecord& record = stored_[site->second];
  record = {};
  record.measured = true;
  store(kernels(), exact, to, spec, &record.stats);
  if (description_.is_reference) {
    record.error = error_of_reference(record.stats);
    return;
  }
  const Tensor converted =
      exact.container() == Container::kF32 ? Tensor() : exact.to(Container::kF32);
  const std::span<const float> expected = (converted.empty() ? exact : converted).as<float>();
  record.error =
      to.container() == Container::kF64
          ? compare<double>(kernels(), std::as_const(to).as<double>(), expected, 1, *spec.format)
          : compare<float>(kernels(), std::as_const(to).as<float>(), expected, 1, *spec.format);
}

void Lane::observe_stored() {
  stored_.clear();
  const auto add = [&](const std::string& value_id, const Tensor& values, const Format* format) {
    const auto site = context_.stored.find(value_id);
    if (site == context_.stored.end() || !measures()) return;
    SiteRecord& record = stored_[site->second];
    record.measured = true;
    record.stats = observe<float>(kernels(), values.as<float>(), *format);
    record.error = error_of_reference(record.stats);
  };
  for (const ParameterState& p : parameters_) add("p:" + p.name, p.weight, p.format);
  for (const auto& [name, tensor] : buffers_)
    add("b:" + name, tensor, runner_->buffer_format(name));
}

// Weights, buffers and constants are stored before the first step, weights and buffers in synced
// mode before every step.
void Lane::record_stored(LaneStep& record) {
  if (step_ == 0 || context_.options->mode == LaneMode::kSynced) {
    for (const auto& [site, measured] : stored_) record.sites[static_cast<size_t>(site)] = measured;
    if (tap_ != nullptr) tap_weights();
  }
  stored_.clear();
}

// Before they are updated. (Buffers have changed by now.)
void Lane::tap_weights() {
  for (const ParameterState& p : parameters_) {
    const auto site = context_.stored.find("p:" + p.name);
    if (site != context_.stored.end()) tap_->take({&site->second, 1}, p.weight, *p.format);
  }
}

// Masters get the exact value and the weights are rounded from them, or directly without masters.
void Lane::store_weight(ParameterState& p, const Tensor& exact) {
  int32_t site = context_.updates.at(p.name).weight;
  if (site < 0) site = context_.stored.at("p:" + p.name);
  if (!p.master.empty()) {
    store(kernels(), exact, p.master,
          rounding_to(description_.policy.master, context_.updates.at(p.name).master));
  }
  store_measured("p:" + p.name, exact, p.weight, rounding_to(p.format, site));
}

void Lane::bind_state(StepRunner& runner, bool masters) const {
  for (const ParameterState& p : parameters_) {
    runner.bind_parameter(p.name, masters ? p.updated() : p.weight);
  }
  for (const auto& [name, tensor] : buffers_) runner.bind_buffer(name, tensor);
  runner.executor().bind_scaling(scaling_);
}

const Lane::ParameterState* Lane::partner(const Lane* lane, const ParameterState& p) const {
  return lane == nullptr ? nullptr : &lane->parameters_[static_cast<size_t>(&p - &parameters_[0])];
}

// Rounds with the key of the previous step: this is its end state.
void Lane::restart_from(const Lane& reference, int64_t step) {
  step_ = step - 1;
  micro_step_ = step * context_.options->micro_steps() - 1;
  if (step > 0) stored_.clear();  // constants are stored once
  for (ParameterState& p : parameters_) {
    const ParameterState& ref = *partner(&reference, p);
    store_weight(p, ref.updated());
    p.missed = ref.missed;
    if (!p.compensation.empty()) p.compensation.fill_zero();
    for (size_t k = 0; k < p.states.size(); ++k) {
      store(kernels(), ref.states[k], p.states[k],
            rounding_to(description_.policy.state_of(p.format),
                        context_.updates.at(p.name).states[k]));
    }
  }
  for (auto& [name, tensor] : buffers_) {
    store_measured("b:" + name, reference.buffers_.at(name), tensor, buffer_rounding(name));
  }
  optimizer_steps_ = reference.optimizer_steps_;
}

void Lane::move_weights_by_one_ulp(int64_t step) {
  constexpr int kStepShift = 40;  // no tensor has 2^40 elements
  constexpr int kTwinShift = 24;  // no model has 2^24 parameter tensors
  const auto twin = static_cast<uint32_t>(twin_number(description_.policy.name) - 1) << kTwinShift;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const RandomStream signs(context_.options->seed, RandomPurpose::kTwin,
                             twin + static_cast<uint32_t>(i));
    const uint64_t first = static_cast<uint64_t>(step) << kStepShift;
    Tensor& weight = parameters_[i].updated();
    kernels().f32.move_by_one_ulp(weight.as<float>().data(), signs, first, weight.size());
  }
}

// Everything that a checkpoint holds of a lane, by its names there.
template <typename Self, typename Visit>
void Lane::visit_tensors(Self& self, Visit visit) {
  for (auto& p : self.parameters_) {
    visit("weight/" + p.name, p.weight);
    if (!p.master.empty()) visit("master/" + p.name, p.master);
    if (!p.compensation.empty()) visit("kahan/" + p.name, p.compensation);
    for (size_t k = 0; k < p.states.size(); ++k) {
      visit(state_key(p.name, k), p.states[k]);
    }
  }
  for (auto& [name, tensor] : self.buffers_) visit("buffer/" + name, tensor);
  for (auto& [name, tensor] : self.scaling_.tensors()) visit("scaling/" + name, tensor);
}

// Values of one shape at a time are in memory.
void Lane::add_memory(ProcessMemory& memory) const {
  int64_t values = 0, gradients = 0;
  for (const auto& runner : runners_) {
    const Executor& executor = runner->executor();
    if (executor.value_bytes() < values) continue;
    values = executor.value_bytes();
    gradients = executor.gradient_bytes();
  }
  memory.value_bytes += values - gradients;
  memory.gradient_bytes += gradients;
  const auto add = [&](const Tensor& tensor) {
    memory.state_bytes += static_cast<int64_t>(tensor.bytes());
  };
  visit_tensors(*this, [&](const std::string&, const Tensor& tensor) { add(tensor); });
  for (const ParameterState& p : parameters_) {
    add(p.sum);
    add(p.update);
    for (const Tensor& sum : p.of_losses) add(sum);
    for (const auto& workers : p.of_workers) std::ranges::for_each(workers, add);
  }
}

LaneStateView Lane::state() const {
  LaneStateView state;
  visit_tensors(*this, [&](const std::string& name, const Tensor& t) { state.tensors[name] = &t; });
  state.scalers = scales_;
  state.optimizer_steps = optimizer_steps_;
  for (const ParameterState& p : parameters_) state.missed.push_back(p.missed);
  state.died_at = died_at_;
  state.died_of = died_of_;
  state.nonfinite_since = nonfinite_since_;
  return state;
}

void Lane::restore(LaneState state) {
  ProblemList problems("checkpoint, lane '" + description_.name + "'");
  visit_tensors(*this, [&](const std::string& name, const Tensor& tensor) {
    const auto it = state.tensors.find(name);
    if (it == state.tensors.end()) {
      problems.add("tensor '" + name + "' is missing");
    } else if (it->second.shape() != tensor.shape() ||
               it->second.container() != tensor.container()) {
      problems.add("tensor '" + name + "': shape " + to_string(it->second.shape()) +
                   ", this run has " + to_string(tensor.shape()));
    }
  });
  const auto expect = [&](const char* what, size_t found, size_t here) {
    if (found == here) return;
    problems.add(fmt::format("{} {}, this run has {}", found, what, here));
  };
  expect("loss scalers", state.scalers.size(), scales_.size());
  expect("parameters", state.missed.size(), parameters_.size());
  expect("parameter groups", state.optimizer_steps.size(), optimizer_steps_.size());
  problems.throw_if_any();
  visit_tensors(*this, [&](const std::string& name, Tensor& tensor) {
    tensor = std::move(state.tensors.at(name));
  });
  scales_ = state.scalers;
  optimizer_steps_ = state.optimizer_steps;
  for (size_t i = 0; i < parameters_.size(); ++i) parameters_[i].missed = state.missed[i];
  died_at_ = state.died_at;
  died_of_ = state.died_of;
  nonfinite_since_ = state.nonfinite_since;
}

}  // namespace lockstep
