// See lane_storage.h.
#include "src/train/lane/lane_storage.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "emulation/kernels/quantize.h"
#include "src/core/random.h"
#include "src/execute/finite.h"
#include "src/execute/storage.h"
#include "src/policy/twin_lane.h"

namespace lockstep {

LaneStorage::LaneStorage(const LaneFrame& frame,
                         const std::vector<std::unique_ptr<StepRunner>>& runners)
    : frame_(frame), scaling_(frame.runner->executor().program()) {
  const LaneContext& context = frame.context;
  const Graph& graph = *context.step_graph;
  optimizer_steps_.assign(context.groups.size(), 0);
  if (context.loop != nullptr) optimizer_steps_ = context.loop->steps_taken;
  parameters_.reserve(graph.parameters.size());  // bound by address
  for (const Parameter& parameter : graph.parameters) add_parameter(parameter, runners);
}

void LaneStorage::start(const std::map<std::string, Tensor>& initial) {
  const LaneContext& context = frame_.context;
  const Graph& graph = *context.step_graph;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    start_parameter(parameters_[i], graph.parameters[i].type.shape, initial);
  }
  for (const Buffer& buffer : graph.buffers) {
    const bool is_int = buffer.type.element == ElementType::kInt;
    Tensor& mine = buffers_[buffer.name] =
        Tensor(buffer.type.shape, is_int ? Container::kI32 : frame_.container());
    store_measured("b:" + buffer.name, initial.at(buffer.name), mine, buffer_rounding(buffer.name));
  }
  for (const Constant& constant : graph.constants) {  // the programs have rounded their own
    const std::string id = "c:" + constant.name;
    if (!context.stored.contains(id)) continue;
    Tensor rounded(constant.type.shape, frame_.container());
    store_measured(id, *constant.data, rounded, {frame_.runner->values().external_format(id)});
  }
}

void LaneStorage::add_parameter(const Parameter& parameter,
                                const std::vector<std::unique_ptr<StepRunner>>& runners) {
  const LaneContext& context = frame_.context;
  LaneParameter& p = parameters_.emplace_back();
  p.name = parameter.name;
  p.sites = &context.updates.at(p.name);
  p.format = frame_.runner->parameter_format(p.name);
  if (context.loop != nullptr) {
    const auto missed = context.loop->missed.find(p.name);
    if (missed != context.loop->missed.end()) p.missed = missed->second;
  }
  for (size_t pass = 0; pass < pass_count(*context.step_graph); ++pass) {
    p.reached.push_back(std::ranges::any_of(runners, [&](const auto& runner) {
      return pass_gradients(runner->graph(), pass).contains(p.name);
    }));
    p.trains = p.trains || p.reached.back();
  }
}

bool LaneStorage::has_master(const LaneParameter& p) const {
  return p.trains && frame_.policy().has_master(p.format);
}

bool LaneStorage::has_compensation(const LaneParameter& p) const {
  return p.trains && frame_.policy().update_rounding == UpdateRounding::kKahan;
}

void LaneStorage::start_parameter(LaneParameter& p, const Shape& shape,
                                  const std::map<std::string, Tensor>& initial) {
  const Container container = frame_.container();
  p.weight = Tensor(shape, container);
  if (p.trains) {
    for (const OptimizerState& state : frame_.context.groups[p.sites->group].states(shape)) {
      Tensor start = state_before_first_step(state, shape, container);
      const auto given = initial.find(state_key(p.name, p.states.size()));
      if (given != initial.end()) start = given->second.to(container);
      store(frame_.kernels(), start, p.states.emplace_back(start.shape(), container),
            {frame_.policy().state_of(p.format), Rounding::kNearestEven, {}});
      if (given == initial.end()) continue;
      // Encoding is not idempotent: a block whose largest state is negative shrinks once more.
      const StateCodes* codes = codes_of(p, p.states.size() - 1);
      const bool is_decoded = codes != nullptr && frame_.context.loop != nullptr &&
                              frame_.context.loop->state_codes == codes->name;
      if (!is_decoded) encode_state(p, p.states.size() - 1, nullptr);
    }
  }
  if (has_master(p)) p.master = Tensor(shape, container);
  if (has_compensation(p)) p.compensation = Tensor(shape, container);
  store_weight(p, initial.at(p.name));
}

const StateCodes* LaneStorage::codes_of(const LaneParameter& p, size_t k) const {
  return frame_.container() == Container::kF64
             ? nullptr
             : frame_.policy().codes_of(p.format, p.states[k].size());
}

void LaneStorage::encode_state(LaneParameter& p, size_t k, TensorStats* stats) const {
  const StateCodes* codes = codes_of(p, k);
  if (codes == nullptr) return;
  const OptimizerState state = frame_.context.groups[p.sites->group].states(p.weight.shape())[k];
  frame_.kernels().compact.round_state(p.states[k].as<float>().data(), p.states[k].size(), *codes,
                                       /*is_signed=*/!state.divides, stats);
}

void LaneStorage::bind_to(StepRunner& runner, bool masters) const {
  for (const LaneParameter& p : parameters_) {
    runner.bind_parameter(p.name, masters ? p.updated() : p.weight);
  }
  for (const auto& [name, tensor] : buffers_) runner.bind_buffer(name, tensor);
  runner.executor().scaled_casts().read(scaling_);
}

void LaneStorage::describe_formats(std::vector<std::string>& formats) const {
  const Policy& policy = frame_.policy();
  const auto note = [&](int32_t site, const Format* format) {
    if (site >= 0) formats.at(static_cast<size_t>(site)) = format->name;
  };
  for (const auto& [value, site] : frame_.context.stored) {
    note(site, frame_.runner->values().external_format(value));
  }
  for (const LaneParameter& p : parameters_) {
    const GradientFormats gradient = frame_.gradient_formats(p.format);
    for (const int32_t site : p.sites->entering) note(site, gradient.sent);
    for (const int32_t site : p.sites->reduced) note(site, gradient.reduced);
    note(p.sites->update, policy.update_of(p.format));
    for (const int32_t site : p.sites->states) note(site, policy.state_of(p.format));
    if (!p.master.empty()) note(p.sites->master, policy.master);
    note(p.sites->weight, p.format);
  }
}

void LaneStorage::take_mutations(int64_t worker) {
  const int64_t workers = frame_.options().workers;
  if (worker == 0) {
    if (workers > 1) next_buffers_ = buffers_;
    // Skipped steps included: they too had a forward pass.
    frame_.runner->take_mutations(workers > 1 ? next_buffers_ : buffers_);
  }
  if (workers > 1 && worker == workers - 1) {
    for (auto& [name, tensor] : buffers_) tensor = next_buffers_.at(name);
  }
}

// Integers have no site, and nothing to round.
QuantizeSpec LaneStorage::buffer_rounding(const std::string& name) const {
  const auto site = frame_.context.stored.find("b:" + name);
  return frame_.rounding_to(frame_.runner->buffer_format(name),
                            site == frame_.context.stored.end() ? -1 : site->second);
}

void LaneStorage::store_measured(const std::string& value_id, const Tensor& exact, Tensor& to,
                                 const QuantizeSpec& spec) {
  const auto site = frame_.context.stored.find(value_id);
  if (site == frame_.context.stored.end() || !frame_.measures()) {
    store(frame_.kernels(), exact, to, spec);
    return;
  }
  TensorStats stats;
  store(frame_.kernels(), exact, to, spec, &stats);
  const Tensor converted =
      exact.container() == Container::kF32 ? Tensor() : exact.to(Container::kF32);
  const Tensor* expected = converted.empty() ? &exact : &converted;
  SiteRecord& record = stored_[site->second] = {};
  frame_.fill(record, to, stats, *spec.format,
              frame_.description.is_reference ? nullptr : expected);
}

// Masters get the exact value and the weights are rounded from them, or directly without masters.
void LaneStorage::store_weight(LaneParameter& p, const Tensor& exact) {
  int32_t site = p.sites->weight;
  if (site < 0) site = frame_.context.stored.at("p:" + p.name);
  if (!p.master.empty()) {
    store(frame_.kernels(), exact, p.master,
          frame_.rounding_to(frame_.policy().master, p.sites->master));
  }
  store_measured("p:" + p.name, exact, p.weight, frame_.rounding_to(p.format, site));
}

void LaneStorage::observe() {
  stored_.clear();
  const auto add = [&](const std::string& value_id, const Tensor& values, const Format* format) {
    const auto site = frame_.context.stored.find(value_id);
    if (site == frame_.context.stored.end() || !frame_.measures()) return;
    frame_.fill(stored_[site->second], values,
                lockstep::observe<float>(frame_.kernels(), values.as<float>(), *format), *format,
                nullptr);
  };
  for (const LaneParameter& p : parameters_) add("p:" + p.name, p.weight, p.format);
  for (const auto& [name, tensor] : buffers_) {
    add("b:" + name, tensor, frame_.runner->buffer_format(name));
  }
}

// Weights, buffers and constants are stored before the first step, weights and buffers in synced
// mode before every step.
void LaneStorage::record(LaneStep& record) {
  if (frame_.step == 0 || frame_.options().mode == LaneMode::kSynced) {
    for (const auto& [site, measured] : stored_) record.sites[static_cast<size_t>(site)] = measured;
    if (frame_.tap != nullptr) tap_weights();
  }
  stored_.clear();
}

// Before they are updated. (Buffers have changed by now.)
void LaneStorage::tap_weights() const {
  for (const LaneParameter& p : parameters_) {
    const auto site = frame_.context.stored.find("p:" + p.name);
    if (site == frame_.context.stored.end()) continue;
    frame_.tap->take({&site->second, 1}, p.weight, *p.format);
  }
}

void LaneStorage::restart_from(const LaneStorage& reference, int64_t step) {
  if (step > 0) stored_.clear();  // constants are stored once
  for (size_t i = 0; i < parameters_.size(); ++i) {
    LaneParameter& p = parameters_[i];
    const LaneParameter& ref = reference.parameters_[i];
    store_weight(p, ref.updated());
    p.missed = ref.missed;
    if (!p.compensation.empty()) p.compensation.fill_zero();
    for (size_t k = 0; k < p.states.size(); ++k) {
      store(frame_.kernels(), ref.states[k], p.states[k],
            frame_.rounding_to(frame_.policy().state_of(p.format), p.sites->states[k]));
      encode_state(p, k, nullptr);
    }
  }
  for (auto& [name, tensor] : buffers_) {
    store_measured("b:" + name, reference.buffers_.at(name), tensor, buffer_rounding(name));
  }
  optimizer_steps_ = reference.optimizer_steps_;
}

void LaneStorage::move_weights_by_one_ulp(int64_t step) {
  constexpr int kStepShift = 40;  // no tensor has 2^40 elements
  constexpr int kTwinShift = 24;  // no model has 2^24 parameter tensors
  const auto twin = static_cast<uint32_t>(twin_number(frame_.policy().name) - 1) << kTwinShift;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const RandomStream signs(frame_.options().seed, RandomPurpose::kTwin,
                             twin + static_cast<uint32_t>(i));
    const uint64_t first = static_cast<uint64_t>(step) << kStepShift;
    Tensor& weight = parameters_[i].updated();
    frame_.kernels().f32.move_by_one_ulp(weight.as<float>().data(), signs, first, weight.size());
  }
}

void LaneStorage::keep_buffers() {
  kept_buffers_ = buffers_;
  kept_scaling_ = scaling_.tensors();
}

void LaneStorage::take_buffers_back() {
  for (auto& [name, tensor] : buffers_) tensor = kept_buffers_.at(name);
  for (auto& [name, tensor] : scaling_.tensors()) tensor = kept_scaling_.at(name);
}

bool LaneStorage::buffers_finite() const {
  return std::ranges::none_of(buffers_, [&](const auto& buffer) {
    const auto& [name, values] = buffer;
    return values.container() != Container::kI32 && !all_finite(frame_.kernels(), values) &&
           all_finite(frame_.kernels(), kept_buffers_.at(name));
  });
}

bool LaneStorage::weights_finite() const {
  return std::ranges::all_of(
      parameters_, [&](const LaneParameter& p) { return all_finite(frame_.kernels(), p.weight); });
}

// Everything that a checkpoint holds of a lane, by its names there.
template <typename Self, typename Visit>
void LaneStorage::visit_tensors(Self& self, Visit visit) {
  for (auto& p : self.parameters_) {
    visit("weight/" + p.name, p.weight);
    if (!p.master.empty()) visit("master/" + p.name, p.master);
    if (!p.compensation.empty()) visit("kahan/" + p.name, p.compensation);
    for (size_t k = 0; k < p.states.size(); ++k) visit(state_key(p.name, k), p.states[k]);
  }
  for (auto& [name, tensor] : self.buffers_) visit("buffer/" + name, tensor);
  for (auto& [name, tensor] : self.scaling_.tensors()) visit("scaling/" + name, tensor);
}

int64_t LaneStorage::bytes() const {
  const Graph& graph = *frame_.context.step_graph;
  int64_t numbers = 0, bytes = 0;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const LaneParameter& p = parameters_[i];
    const Shape& shape = graph.parameters[i].type.shape;
    numbers += element_count(shape) * static_cast<int64_t>(1 + has_master(p) + has_compensation(p));
    if (!p.trains) continue;
    for (const Shape& state : state_shapes(frame_.context.groups[p.sites->group], shape)) {
      numbers += element_count(state);
    }
  }
  for (const Buffer& buffer : graph.buffers) {
    const bool is_int = buffer.type.element == ElementType::kInt;
    (is_int ? bytes : numbers) +=
        element_count(buffer.type.shape) *
        (is_int ? static_cast<int64_t>(bytes_of(Container::kI32)) : int64_t{1});
  }
  for (const auto& [name, tensor] : scaling_.tensors()) {
    bytes += static_cast<int64_t>(tensor.bytes());
  }
  return bytes + numbers * static_cast<int64_t>(bytes_of(frame_.container()));
}

void LaneStorage::view(LaneStateView& state) const {
  visit_tensors(*this, [&](const std::string& name, const Tensor& t) { state.tensors[name] = &t; });
  state.optimizer_steps = optimizer_steps_;
  for (const LaneParameter& p : parameters_) state.missed.push_back(p.missed);
}

void LaneStorage::check(const LaneState& state, ProblemList& problems) const {
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
}

void LaneStorage::restore(LaneState& state) {
  visit_tensors(*this, [&](const std::string& name, Tensor& tensor) {
    tensor = std::move(state.tensors.at(name));
  });
  optimizer_steps_ = state.optimizer_steps;
  for (size_t i = 0; i < parameters_.size(); ++i) parameters_[i].missed = state.missed[i];
}

}  // namespace lockstep
