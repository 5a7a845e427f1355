// A lane's storage and the parts of its step; the optimizer part is in lane_update.cc.
#include "src/train/lane.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "emulation/kernels/quantize.h"
#include "src/core/error.h"
#include "src/core/random.h"
#include "src/execute/engines.h"
#include "src/train/loss_passes.h"
#include "src/train/twin.h"
#include "src/update/schedules.h"

namespace lockstep {
namespace {

// to = round(from), through a change of container where they differ; integers are copied.
void store(const Tensor& from, Tensor& to, const QuantizeSpec& spec) {
  if (to.container() == Container::kI32) {
    std::ranges::copy(from.as<int32_t>(), to.as<int32_t>().begin());
    return;
  }
  const Tensor converted = from.container() == to.container() ? Tensor() : from.to(to.container());
  const Tensor& source = converted.empty() ? from : converted;
  if (to.container() == Container::kF64) {
    quantize<double>(source.as<double>(), to.as<double>(), spec, nullptr);
  } else {
    quantize<float>(source.as<float>(), to.as<float>(), spec, nullptr);
  }
}

void fill(Tensor& tensor, double value) {
  if (tensor.container() == Container::kF64) {
    std::ranges::fill(tensor.as<double>(), value);
  } else {
    std::ranges::fill(tensor.as<float>(), static_cast<float>(value));
  }
}

}  // namespace

LaneContext make_lane_context(const Graph& step_graph, const SiteTable& sites,
                              const RunOptions& options, const CapturedLoop* loop,
                              std::span<const StepGraph> other_shapes) {
  LaneContext context{&step_graph,
                      &sites,
                      &options,
                      {},
                      {},
                      loss_names(step_graph),
                      sites_of_passes(step_graph, sites),
                      loop,
                      other_shapes};
  context.groups = loop == nullptr ? optimizer_groups(options) : loop->groups.front();
  for (const Parameter& parameter : step_graph.parameters) {
    LaneContext::Update& found = context.updates[parameter.name];
    if (loop == nullptr) {
      found.group = group_of(parameter, options.groups);
    } else if (const auto it = loop->group_of.find(parameter.name); it != loop->group_of.end()) {
      found.group = it->second;  // in no group: it has no gradient and is never stepped
    }
    found.update = sites.find_update(parameter.name, Role::kUpdate);
    found.master = sites.find_update(parameter.name, Role::kMasterWeight);
    found.weight = sites.find_update(parameter.name, Role::kWeight);
    for (int pass = 0; pass < static_cast<int>(pass_count(step_graph)); ++pass) {
      found.entering.push_back(sites.find_all_reduce(parameter.name, Point::kOperand, pass));
      found.reduced.push_back(sites.find_all_reduce(parameter.name, Point::kOutput, pass));
    }
    for (size_t i = 0; i < context.groups[found.group].states.size(); ++i) {
      found.states.push_back(
          sites.find_update(parameter.name, Role::kOptimizerState, static_cast<int>(i)));
    }
  }
  return context;
}

const HyperNumbers& LaneContext::numbers(size_t group, int64_t step) const {
  return loop == nullptr ? groups[group].numbers : loop->groups[loop->at(step)][group].numbers;
}

int64_t LaneContext::micro_batches(int64_t step) const {
  if (loop == nullptr) return options->accumulate;
  return static_cast<int64_t>(loop->loss_mult[loop->at(step)].size());
}

size_t LaneContext::graph_of(int64_t step, int64_t micro_batch) const {
  return loop == nullptr ? 0 : loop->graph_of[loop->at(step)][static_cast<size_t>(micro_batch)];
}

const Graph& LaneContext::graph(size_t number) const {
  return number == 0 ? *step_graph : other_shapes[number - 1].graph;
}

double LaneContext::loss_divisor(int64_t step, int64_t micro_batch) const {
  if (loop == nullptr) return static_cast<double>(options->accumulate);
  return 1 / loop->loss_mult[loop->at(step)][static_cast<size_t>(micro_batch)];
}

double LaneContext::lr(size_t group, int64_t step) const {
  if (loop != nullptr) return numbers(group, step)["lr"];
  return scheduled_lr(options->schedule, groups[group].numbers["lr"], step, options->steps);
}

void bind_inputs(Executor& executor, const Graph& graph, const Batch& batch, QuantizeSpec rounding,
                 std::map<std::string, Tensor>& copies) {
  for (const GraphInput& input : graph.inputs) {
    if (is_seed(input.id)) continue;
    const auto it = batch.find(input.path);
    if (it == batch.end()) {
      throw InputError("model '" + graph.name + "' wants an input '" + input.path +
                       "' that the data does not have");
    }
    rounding.format = executor.external_format(input.id);
    const bool as_it_is =
        rounding.format == nullptr ||
        (rounding.format->is_fp32() && executor.container() == it->second.container());
    if (as_it_is) {
      executor.bind(input.id, it->second);
      continue;
    }
    Tensor& copy = copies[input.id];
    if (copy.empty()) copy = Tensor(it->second.shape(), executor.container());
    store(it->second, copy, rounding);
    executor.bind(input.id, copy);
    ++rounding.key.site;  // inputs draw from different streams
  }
  executor.forget_masks();
  for (const auto& [name, tensor] : batch) {
    if (name.starts_with(kMaskPrefix)) executor.give_mask(name.substr(kMaskPrefix.size()), tensor);
  }
}

Lane::Lane(const LaneContext& context, const LaneDescription& description,
           const std::map<std::string, Tensor>& initial)
    : context_(context),
      description_(description),
      plans_(make_plans()),
      plan_(plans_.front().get()),
      scaling_(plan_->executor.program()),
      scaler_(find_loss_scaler(description.policy.loss_scale.kind)),
      scales_{scaler_.initial(description.policy.loss_scale)},
      optimizer_steps_(context.groups.size(), 0) {
  survey_programs();
  take_captured_scaler();
  const Graph& graph = *context.step_graph;
  const Container container = executor().container();
  if (has_scaler_per_loss(description.policy, graph)) {
    for (const BackwardPass& pass : graph.passes) description_.scaler_losses.push_back(pass.name);
    scales_.assign(graph.passes.size(), scales_[0]);
  }
  parameters_.resize(graph.parameters.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = graph.parameters[i];
    const Shape& shape = parameter.type.shape;
    ParameterState& p = parameters_[i];
    p.name = parameter.name;
    p.group = context.updates.at(p.name).group;
    p.format = executor().external_format("p:" + p.name);
    p.weight = Tensor(shape, container);
    for (size_t pass = 0; pass < pass_count(graph); ++pass) {
      p.reached.push_back(pass_gradients(graph, pass).contains(p.name));
      p.trains = p.trains || p.reached.back();
    }
    if (p.trains) {
      p.update = Tensor(shape, container);
      for (const OptimizerState& state : context.groups[p.group].states) {
        Tensor start(shape, container);
        fill(start, state.initial);
        const auto given = initial.find(state_key(p.name, p.states.size()));
        if (given != initial.end()) start = given->second.to(container);
        store(start, p.states.emplace_back(shape, container),
              {description.policy.state_of(p.format), Rounding::kNearestEven, {}});
      }
      if (description.policy.has_master(p.format)) p.master = Tensor(shape, container);
      if (description.policy.update_rounding == UpdateRounding::kKahan) {
        p.compensation = Tensor(shape, container);
      }
      make_sums(p);
    }
    store_weight(p, initial.at(p.name));
  }
  for (const Buffer& buffer : graph.buffers) {
    const bool is_int = buffer.type.element == ElementType::kInt;
    Tensor& mine = buffers_[buffer.name] =
        Tensor(buffer.type.shape, is_int ? Container::kI32 : container);
    store(initial.at(buffer.name), mine,
          rounding_to(executor().external_format("b:" + buffer.name), buffer_key(buffer.name)));
  }
  description_.memory = memory_facts(
      graph, executor().program(), description.policy, [&](const Parameter& parameter) {
        const size_t group = context.updates.at(parameter.name).group;
        return static_cast<int>(context.groups[group].states.size());
      });
  seeds_.assign(pass_count(graph), Tensor({}, container));
  for (const auto& plan : plans_) {
    for (size_t pass = 0; pass < seeds_.size(); ++pass) {
      plan->executor.bind(seed_id(graph, pass), seeds_[pass]);
    }
    bind_state(plan->executor);
    plan->executor.learn_scaling(scaling_);
  }
}

std::vector<std::unique_ptr<Lane::Plan>> Lane::make_plans() const {
  const Container container = container_of(description_);
  const auto& kernels = find_engine(description_.engine).kernels;
  std::vector<std::unique_ptr<Plan>> plans;
  const auto add = [&](const Graph& graph, const SiteTable& sites) {
    Program program = lower(graph, sites, description_.policy, container == Container::kF64);
    plans.push_back(std::unique_ptr<Plan>(
        new Plan{graph, {graph, sites, std::move(program), container, kernels}, {}}));
  };
  add(*context_.step_graph, *context_.sites);
  for (const StepGraph& other : context_.other_shapes) add(other.graph, other.sites);
  return plans;
}

// Values of one shape at a time are in memory.
void Lane::choose_plan(size_t number) {
  Plan* chosen = plans_[number].get();
  if (chosen != plan_) {
    executor().forget_values();
    plan_->input_copies.clear();
  }
  plan_ = chosen;
}

// A preset's dynamic scaler goes on where the captured one stood, with its numbers; a policy file
// says what it wants itself.
void Lane::take_captured_scaler() {
  if (context_.loop == nullptr) return;
  optimizer_steps_ = context_.loop->steps_taken;
  const std::optional<CapturedScaler>& captured = context_.loop->scaler;
  Policy& policy = description_.policy;
  const bool is_file = parse_lane_name(description_.name).policy.ends_with(".toml");
  if (!captured || is_file || policy.loss_scale.kind != captured->spec.kind) return;
  policy.loss_scale = captured->spec;
  scales_ = {captured->start};
  policy.notes.push_back(fmt::format(
      "the loss scaler starts as captured: scale {}, {} clean steps, growth_factor {}, "
      "backoff_factor {}, growth_interval {}",
      captured->start.scale, captured->start.growth_tracker, captured->spec.growth_factor,
      captured->spec.backoff_factor, captured->spec.growth_interval));
}

// Refuses what this machine cannot compute, and notes what others do in the engine's place.
void Lane::survey_programs() {
  const Engine& engine = find_engine(description_.engine);
  if (engine.survey == nullptr) return;
  const auto add_once = [](std::vector<std::string>& list, const std::string& text) {
    if (std::ranges::count(list, text) == 0) list.push_back(text);
  };
  std::vector<std::string> missing;
  for (const auto& plan : plans_) {
    const EngineSurvey survey = engine.survey(plan->graph, plan->executor.program());
    for (const std::string& unit : survey.missing) add_once(missing, unit);
    for (const std::string& part : survey.fallbacks) add_once(description_.fallbacks, part);
  }
  ProblemList problems("lane '" + description_.name + "'");
  for (const std::string& unit : missing) {
    problems.add(unit, "leave '@" + description_.target + "' out to run the software engine");
  }
  problems.throw_if_any();
  for (const OptimizerGroup& group : context_.groups) {
    add_once(description_.fallbacks, std::string(group.optimizer->name));
  }
}

QuantizeSpec Lane::rounding_to(const Format* format, int32_t site) const {
  static const int kFp32Precision = find_format("fp32").precision;
  const bool narrow = format == nullptr || format->precision < kFp32Precision;
  return {format,
          narrow ? description_.policy.rounding : Rounding::kNearestEven,
          {context_.options->seed, description_.policy.stream, static_cast<uint32_t>(site),
           static_cast<uint64_t>(micro_step_)}};
}

// Stochastic keys of what has no site of its own, behind the last site: inputs (kind 0), parameters
// without a gradient (1), buffers (2); a graph has fewer than 2^16 of each.
int32_t Lane::siteless_key(int32_t kind, int64_t index) const {
  constexpr int32_t kPerKind = 1 << 16;
  return static_cast<int32_t>(context_.sites->sites.size()) + kind * kPerKind +
         static_cast<int32_t>(index);
}

int32_t Lane::buffer_key(std::string_view name) const {
  const auto& buffers = context_.step_graph->buffers;
  const auto it = std::find_if(buffers.begin(), buffers.end(),
                               [&](const Buffer& buffer) { return buffer.name == name; });
  return siteless_key(2, it - buffers.begin());
}

// Masters take the exact value and the weights are rounded from them; without masters directly.
void Lane::store_weight(ParameterState& p, const Tensor& exact) {
  int32_t site = context_.updates.at(p.name).weight;
  if (site < 0) site = siteless_key(1, &p - parameters_.data());
  if (!p.master.empty()) {
    store(exact, p.master,
          rounding_to(description_.policy.master, context_.updates.at(p.name).master));
  }
  store(exact, p.weight, rounding_to(p.format, site));
}

void Lane::bind_state(Executor& executor, bool masters) const {
  for (const ParameterState& p : parameters_) {
    executor.bind("p:" + p.name, masters ? p.updated() : p.weight);
  }
  for (const auto& [name, tensor] : buffers_) executor.bind("b:" + name, tensor);
  executor.bind_scaling(scaling_);
}

const Lane::ParameterState* Lane::partner(const Lane* lane, const ParameterState& p) const {
  return lane == nullptr ? nullptr : &lane->parameters_[static_cast<size_t>(&p - &parameters_[0])];
}

// Rounds with the key of the step before, whose end state this is.
void Lane::restart_from(const Lane& reference, int64_t step) {
  step_ = step - 1;
  micro_step_ = step * context_.options->parts() - 1;
  for (ParameterState& p : parameters_) {
    const ParameterState& ref = *partner(&reference, p);
    store_weight(p, ref.updated());
    if (!p.compensation.empty()) p.compensation.fill_zero();
    for (size_t k = 0; k < p.states.size(); ++k) {
      store(ref.states[k], p.states[k],
            rounding_to(description_.policy.state_of(p.format),
                        context_.updates.at(p.name).states[k]));
    }
  }
  for (auto& [name, tensor] : buffers_) {
    store(reference.buffers_.at(name), tensor,
          rounding_to(executor().external_format("b:" + name), buffer_key(name)));
  }
  optimizer_steps_ = reference.optimizer_steps_;
}

void Lane::move_weights_by_one_ulp(int64_t step) {
  constexpr int kStepShift = 40;  // no tensor has 2^40 elements
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const RandomStream signs(context_.options->seed, RandomPurpose::kTwin,
                             static_cast<uint32_t>(i));
    const uint64_t first = static_cast<uint64_t>(step) << kStepShift;
    move_by_one_ulp(parameters_[i].updated().as<float>(), signs, first);
  }
}

// The loss is divided by the number of micro-batches, so that their gradients add up to the mean's;
// a captured loop may have done it another way. The mean over workers is the all-reduce's work.
// Stochastic keys count micro-batches as if every step had as many as the longest.
void Lane::begin_micro_batch(int64_t step, int64_t micro_batch, const Batch& batch,
                             int64_t worker) {
  const int64_t count = context_.options->accumulate;
  step_ = step;
  micro_step_ = (step * count + micro_batch) * context_.options->workers + worker;
  choose_plan(context_.graph_of(step, micro_batch));
  std::vector<double> scales;
  for (size_t pass = 0; pass < seeds_.size(); ++pass) {
    scales.push_back(scale(scaler_of(pass)));
    // A quotient of two floats, rounded from double to float, is the float quotient.
    Tensor seed({}, Container::kF64);
    seed.as<double>()[0] = scales.back() / context_.loss_divisor(step, micro_batch);
    const std::string_view id = seed_id(*context_.step_graph, pass);
    store(seed, seeds_[pass], {executor().external_format(id), Rounding::kNearestEven, {}});
  }
  bind_inputs(executor(), plan_->graph, batch, rounding_to(nullptr, siteless_key(0, 0)),
              plan_->input_copies);
  executor().begin_step(
      {context_.options->seed, description_.policy.stream, static_cast<uint64_t>(micro_step_)},
      scales, context_.options->samples_sums(step));
}

void Lane::run_node(int node, const Lane* reference, std::vector<SiteRecord>& sites) {
  const std::span<SiteRecord> records =
      context_.options->measure ? std::span<SiteRecord>(sites) : std::span<SiteRecord>();
  executor().run_node(node, reference == nullptr ? nullptr : &reference->executor(), records);
}

// Everything a checkpoint holds of a lane, by the names it has there.
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

LaneState Lane::state() const {
  LaneState state;
  visit_tensors(*this, [&](const std::string& name, const Tensor& t) { state.tensors[name] = t; });
  state.scalers = scales_;
  state.optimizer_steps = optimizer_steps_;
  state.died_at = died_at_;
  state.died_of = died_of_;
  state.nonfinite_since = nonfinite_since_;
  return state;
}

void Lane::restore(const LaneState& state) {
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
  expect("parameter groups", state.optimizer_steps.size(), optimizer_steps_.size());
  problems.throw_if_any();
  visit_tensors(*this,
                [&](const std::string& name, Tensor& tensor) { tensor = state.tensors.at(name); });
  scales_ = state.scalers;
  optimizer_steps_ = state.optimizer_steps;
  died_at_ = state.died_at;
  died_of_ = state.died_of;
  nonfinite_since_ = state.nonfinite_since;
}

}  // namespace lockstep
