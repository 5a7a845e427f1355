// The set-up of a lane. lane_state.cc stores its state, lane_passes.cc runs its passes,
// lane_gradients.cc and lane_update.cc end its step.
#include "src/train/lane.h"

#include <fmt/format.h>

#include <algorithm>

#include "emulation/kernels/quantize.h"
#include "src/core/error.h"
#include "src/execute/engines.h"
#include "src/execute/storage.h"
#include "src/lower/site_formats.h"
#include "src/train/loss_passes.h"

namespace lockstep {
namespace {

// A captured loop under FP16 autocast without a GradScaler is replayed without one, whatever the
// preset has; a policy file's own scaler is kept.
LaneDescription as_in_loop(LaneDescription lane, const LaneContext& context) {
  const bool is_file = parse_lane_name(lane.name).policy.ends_with(".toml");
  const bool has_grad_scaler = lane.policy.loss_scale.kind == kGradScaler;
  if (context.loop == nullptr || !context.loop->lacks_scaler || is_file || !has_grad_scaler) {
    return lane;
  }
  lane.policy.loss_scale = {};
  lane.policy.notes.emplace_back("the captured loop has no GradScaler, so this lane has none");
  return lane;
}

}  // namespace

Lane::Lane(const LaneContext& context, const LaneDescription& description,
           const std::map<std::string, Tensor>& initial)
    : context_(context),
      description_(as_in_loop(description, context)),
      runners_(make_runners()),
      runner_(runners_.front().get()),
      scaling_(runner_->executor().program()),
      scaler_(find_loss_scaler(description_.policy.loss_scale.kind)),
      scales_{scaler_.initial(description_.policy.loss_scale)},
      detail_(context.options->measuring.on ? SiteDetail::kEverything : SiteDetail::kNothing),
      optimizer_steps_(context.groups.size(), 0) {
  survey_programs();
  take_captured_scaler();
  const Graph& graph = *context.step_graph;
  const Container container = this->container();
  if (has_scaler_per_loss(description_.policy, graph)) {
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
    if (context.loop != nullptr) {
      const auto missed = context.loop->missed.find(p.name);
      if (missed != context.loop->missed.end()) p.missed = missed->second;
    }
    p.format = runner_->parameter_format(p.name);
    p.weight = Tensor(shape, container);
    for (size_t pass = 0; pass < pass_count(graph); ++pass) {
      p.reached.push_back(std::ranges::any_of(runners_, [&](const auto& runner) {
        return pass_gradients(runner->graph(), pass).contains(p.name);
      }));
      p.trains = p.trains || p.reached.back();
    }
    if (p.trains) {
      if (description.is_reference) p.update = Tensor(shape, container);
      for (const OptimizerState& state : context.groups[p.group].states) {
        Tensor start = state_before_first_step(state, shape, container);
        const auto given = initial.find(state_key(p.name, p.states.size()));
        if (given != initial.end()) start = given->second.to(container);
        store(kernels(), start, p.states.emplace_back(shape, container),
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
    store_measured("b:" + buffer.name, initial.at(buffer.name), mine, buffer_rounding(buffer.name));
  }
  for (const Constant& constant : graph.constants) {  // the programs have rounded their own
    const std::string id = "c:" + constant.name;
    if (!context.stored.contains(id)) continue;
    Tensor rounded(constant.type.shape, container);
    store_measured(id, *constant.data, rounded, {runner_->executor().external_format(id)});
  }
  description_.memory = memory_facts(
      graph, runner_->executor().program(), description.policy, [&](const Parameter& parameter) {
        const size_t group = context.updates.at(parameter.name).group;
        return static_cast<int>(context.groups[group].states.size());
      });
  describe_formats();
  for (const auto& runner : runners_) {
    bind_state(*runner);
    runner->executor().learn_scaling(scaling_);
    runner->executor().decide_itself(context.options->decisions == Decisions::kOwn);
  }
}

std::vector<std::unique_ptr<StepRunner>> Lane::make_runners() const {
  const auto& kernels = find_engine(description_.engine).kernels;
  const bool is_followed = description_.is_reference && context_.options->lanes.size() > 1;
  const int lead = is_followed ? kReferenceLead : 0;
  std::vector<std::unique_ptr<StepRunner>> runners;
  const auto add = [&](const Graph& graph, const SiteTable& sites) {
    runners.push_back(std::make_unique<StepRunner>(graph, sites, description_.policy,
                                                   container_of(description_), kernels, lead));
  };
  add(*context_.step_graph, *context_.sites);
  for (const StepGraph& other : context_.other_shapes) add(other.graph, other.sites);
  return runners;
}

// The formats of all sites: the program's, those of storage, of gradients between workers and of
// updates.
void Lane::describe_formats() {
  const Policy& policy = description_.policy;
  std::vector<std::string>& formats = description_.site_formats;
  formats = site_formats(runner_->executor().program(), context_.sites->sites.size());
  const auto note = [&](int32_t site, const Format* format) {
    if (site >= 0) formats.at(static_cast<size_t>(site)) = format->name;
  };
  for (const auto& [value, site] : context_.stored) {
    note(site, runner_->executor().external_format(value));
  }
  for (const ParameterState& p : parameters_) {
    const LaneContext::Update& sites = context_.updates.at(p.name);
    const Format* exchanged =
        policy.all_reduce.format == nullptr ? p.format : policy.all_reduce.format;
    for (const int32_t site : sites.entering) note(site, exchanged);
    for (const int32_t site : sites.reduced) note(site, p.format);
    note(sites.update, policy.update_of(p.format));
    for (const int32_t site : sites.states) note(site, policy.state_of(p.format));
    if (!p.master.empty()) note(sites.master, policy.master);
    note(sites.weight, p.format);
  }
}

// A preset's dynamic scaler continues from the captured scaler's state, with its numbers; a policy
// file's own numbers are kept.
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

// Refuses what this machine cannot compute, and notes which kernels replace the engine's.
void Lane::survey_programs() {
  const Engine& engine = find_engine(description_.engine);
  if (engine.survey == nullptr) return;
  const auto add_once = [](std::vector<std::string>& list, const std::string& text) {
    if (std::ranges::count(list, text) == 0) list.push_back(text);
  };
  std::vector<std::string> missing;
  for (const auto& runner : runners_) {
    const EngineSurvey survey = engine.survey(runner->graph(), runner->executor().program());
    for (const std::string& unit : survey.missing) add_once(missing, unit);
    for (const std::string& part : survey.fallbacks) add_once(description_.fallbacks, part);
    for (const auto& [node, sum] : survey.device_sums) {
      description_.device_sums.resize(context_.sites->sites.size());
      const int32_t site = runner->executor().product_site(node);
      if (site >= 0) description_.device_sums.at(static_cast<size_t>(site)) = sum;
    }
  }
  ProblemList problems("lane '" + description_.name + "'");
  for (const std::string& unit : missing) {
    problems.add(unit, "leave '@" + description_.target + "' out to run the software engine");
  }
  problems.throw_if_any();
  if (engine.hardware == nullptr) return;  // software: an optimizer replaces nothing
  for (const OptimizerGroup& group : context_.groups) {
    add_once(description_.fallbacks, std::string(group.optimizer->name));
  }
}

}  // namespace lockstep
