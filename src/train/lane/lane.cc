// The set-up of a lane, the passes of its step, and the step's end.
#include "src/train/lane/lane.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "emulation/math/functions.h"
#include "src/core/error.h"
#include "src/execute/engines.h"
#include "src/lower/site_formats.h"

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

// Of two tensors of floats, in their own order.
WatchedStats compare_watched(const Tensor& lane, const Tensor& reference, bool log_probs) {
  WatchedStats out;
  if (log_probs) out.kl_sum = 0;
  out.count = static_cast<uint64_t>(lane.size());
  const float* expected = reference.as<float>().data();
  const auto add = [&]<typename T>(T) {
    const T* own = lane.as<T>().data();
    for (int64_t i = 0; i < lane.size(); ++i) {
      if (!std::isfinite(expected[i])) continue;
      if (!std::isfinite(own[i])) {
        ++out.nonfinite;
        continue;
      }
      const double error = static_cast<double>(own[i]) - static_cast<double>(expected[i]);
      ++out.compared;
      out.reference_sum += std::fabs(static_cast<double>(expected[i]));
      out.error_sum += std::fabs(error);
      out.error_max = std::max(out.error_max, std::fabs(error));
      if (log_probs) out.kl_sum += lockstep_expm1(error) - error;
    }
  };
  lane.container() == Container::kF64 ? add(double()) : add(float());
  return out;
}

template <typename Part>
const Part* part_of(const Lane* lane, const Part Lane::*part) {
  return lane == nullptr ? nullptr : &(lane->*part);
}

}  // namespace

Lane::Lane(const LaneContext& context, const LaneDescription& description)
    : frame_{.context = context,
             .description = as_in_loop(description, context),
             .detail =
                 context.options->measuring.on ? SiteDetail::kEverything : SiteDetail::kNothing},
      runners_(make_runners()),
      scalers_(frame_),
      storage_(frame_, runners_),
      gradients_(frame_, storage_.parameters(), scalers_),
      update_(frame_, storage_, gradients_) {
  const Program& program = frame_.runner->executor().program();
  LaneDescription& mine = frame_.description;
  mine.memory = memory_facts(*context.step_graph, program, mine.policy, [&](const Parameter& p) {
    return state_shapes(context.groups[context.updates.at(p.name).group], p.type.shape);
  });
  mine.site_formats = site_formats(program, context.sites->sites.size());
}

void Lane::start(const std::map<std::string, Tensor>& initial) {
  storage_.start(initial);
  gradients_.start();
  update_.start();
  LaneDescription& mine = frame_.description;
  storage_.describe_formats(mine.site_formats);
  for (const auto& runner : runners_) {
    bind_state(*runner);
    storage_.learn_scaling(*runner);
  }
}

std::vector<std::unique_ptr<StepRunner>> Lane::make_runners() {
  const LaneContext& context = frame_.context;
  const bool is_followed = frame_.description.is_reference && context.options->lanes.size() > 1;
  const ExecutionRules rules{.container = container_of(frame_.description),
                             .kernels = find_engine(frame_.description.engine).kernels,
                             .readers_lag = is_followed ? kReferenceLead : 0,
                             .decides_itself = context.options->decisions == Decisions::kOwn};
  std::vector<std::unique_ptr<StepRunner>> runners;
  const auto add = [&](const Graph& graph, const SiteTable& sites) {
    runners.push_back(std::make_unique<StepRunner>(graph, sites, frame_.policy(), rules));
  };
  add(*context.step_graph, *context.sites);
  for (const StepGraph& other : context.other_shapes) add(other.graph, other.sites);
  survey_programs(runners);
  frame_.runner = runners.front().get();
  return runners;
}

// Refuses what this machine cannot compute, and notes which kernels replace the engine's.
void Lane::survey_programs(const std::vector<std::unique_ptr<StepRunner>>& runners) {
  LaneDescription& mine = frame_.description;
  const Engine& engine = find_engine(mine.engine);
  if (engine.survey == nullptr) return;
  const auto add_once = [](std::vector<std::string>& list, const std::string& text) {
    if (std::ranges::count(list, text) == 0) list.push_back(text);
  };
  std::vector<std::string> missing;
  for (const auto& runner : runners) {
    const EngineSurvey survey = engine.survey(runner->graph(), runner->executor().program());
    for (const std::string& unit : survey.missing) add_once(missing, unit);
    for (const std::string& part : survey.fallbacks) add_once(mine.fallbacks, part);
    for (const auto& [node, sum] : survey.device_sums) {
      mine.device_sums.resize(frame_.context.sites->sites.size());
      const int32_t site = runner->executor().product_site(node);
      if (site >= 0) mine.device_sums.at(static_cast<size_t>(site)) = sum;
    }
  }
  ProblemList problems("lane '" + mine.name + "'");
  for (const std::string& unit : missing) {
    problems.add(unit, "leave '@" + mine.target + "' out to run the software engine");
  }
  problems.throw_if_any();
  if (engine.hardware == nullptr) return;  // software: an optimizer replaces nothing
  for (const OptimizerGroup& group : frame_.context.groups) {
    add_once(mine.fallbacks, std::string(group.optimizer->name));
  }
}

void Lane::tap(ValueTap* tap) {
  frame_.tap = tap;
  for (const auto& runner : runners_) runner->executor().tap(tap);
}

void Lane::restart_from(const Lane& reference, int64_t step) {
  frame_.step = step - 1;
  frame_.micro_step = step * frame_.options().micro_steps() - 1;
  storage_.restart_from(reference.storage_, step);
}

// Values of one shape at a time are in memory.
void Lane::choose_runner(size_t number) {
  StepRunner* chosen = runners_[number].get();
  if (chosen != frame_.runner) frame_.runner->forget_values();
  frame_.runner = chosen;
  runner_ = number;
}

// The loss is divided by the number of micro-batches, so that their gradients add up to the mean's;
// a captured loop may have divided by another number. The all-reduce computes the mean over
// workers. Stochastic keys count micro-batches as if every step had as many as the longest.
void Lane::begin_micro_batch(int64_t step, int64_t micro_batch, const Batch& batch, int64_t worker,
                             const Lane* reference, std::span<SiteRecord> sites) {
  const RunOptions& options = frame_.options();
  frame_.step = step;
  frame_.micro_step = (step * options.accumulate + micro_batch) * options.workers + worker;
  choose_runner(frame_.context.graph_of(step, micro_batch));
  if (micro_batch == 0 && worker == 0) gradients_.begin_step();
  StepPass pass{
      .key = frame_.key(),
      .loss_scales = {},
      .loss_divisor = frame_.context.loss_divisor(step, micro_batch),
      .measuring = {.detail = frame_.detail, .sample_sums = options.measuring.samples_sums(step)}};
  for (size_t i = 0; i < pass_count(*frame_.context.step_graph); ++i) {
    pass.loss_scales.push_back(scalers_.scale(scalers_.of_pass(i)));
  }
  frame_.runner->begin(pass, batch, reference == nullptr ? nullptr : reference->frame_.runner,
                       sites);
}

void Lane::run_node(int node, const Lane* reference, std::vector<SiteRecord>& sites) {
  frame_.runner->run_node(node, reference == nullptr ? nullptr : reference->frame_.runner, sites);
}

void Lane::add_watched(int node, const Lane& reference, std::vector<WatchedStats>& watched) const {
  for (size_t i = 0; i < watched.size(); ++i) {
    const WatchedValue& value = frame_.context.watched[i];
    const WatchedValue::Place& place = value.places[runner_];
    if (place.node != node) continue;
    watched[i].merge(compare_watched(frame_.runner->values().of(place.value),
                                     reference.frame_.runner->values().of(place.value),
                                     value.log_probs));
  }
}

void Lane::finish_micro_batch(int64_t micro_batch, LaneStep& record, int64_t worker) {
  const LaneContext& context = frame_.context;
  const double count =
      static_cast<double>(context.micro_batches(frame_.step) * context.options->workers);
  storage_.take_mutations(worker);
  record.loss += frame_.runner->loss() / count;
  record.losses.resize(context.losses.size());
  for (size_t i = 0; i < context.losses.size(); ++i) {
    record.losses[i] += frame_.runner->loss(context.losses[i]) / count;
  }
  gradients_.add(micro_batch, worker, record);
}

void Lane::enter_all_reduce(const Lane* reference, LaneStep& record) {
  gradients_.enter_all_reduce(part_of(reference, &Lane::gradients_), record);
}

void Lane::all_reduce(const Lane* reference, LaneStep& record) {
  gradients_.all_reduce(part_of(reference, &Lane::gradients_), record);
}

bool Lane::is_finite(const LaneStep& record) const {
  const auto is_found = [](const std::vector<bool>& groups) {
    return std::ranges::count(groups, true) > 0;
  };
  return std::isfinite(record.loss) && std::ranges::none_of(gradients_.found_inf(), is_found) &&
         storage_.buffers_finite();
}

bool Lane::tries_again(int64_t attempts) {
  const LossScaleUse& use = frame_.policy().loss_scale_use;
  return use.replay && attempts < use.replay_limit && !scalers_.has_raised() &&
         scalers_.try_again(gradients_.found_inf());
}

// 1. what was stored before the step   2. found_inf on scaled gradients   3. unscale, clip
// 4. update, or skip   5. the next scales
void Lane::finish_step(const Lane* reference, LaneStep& record) {
  storage_.record(record);
  for (const auto& runner : runners_) record.device.merge(runner->executor().take_device_work());
  record.lr.clear();
  for (size_t group = 0; group < frame_.context.groups.size(); ++group) {
    record.lr.push_back(frame_.context.lr(group, frame_.step));
  }
  const FoundInf found = gradients_.found_inf();
  const std::vector<bool> skips = scalers_.skips(found);
  scalers_.record(found, skips, record);
  gradients_.finish(record);
  update_.run(skips, part_of(reference, &Lane::update_), record);
  scalers_.end_step(record);
  follow_death();
}

// died_at is the first step that is not run. The reference never stops: the others need it. A
// synced lane whose weights are lost does not stop either: its next step starts from the
// reference's. A scaler that stops training stops the lane in both modes.
void Lane::follow_death() {
  const int64_t step = frame_.step;
  if (scalers_.has_raised()) {
    died_at_ = step + 1;
    died_of_ = DeathCause::kLossScaler;
    return;
  }
  if (frame_.description.is_reference || frame_.options().mode == LaneMode::kSynced) return;
  if (weights_finite()) {
    nonfinite_since_ = -1;
    return;
  }
  if (nonfinite_since_ < 0) nonfinite_since_ = step;
  if (step - nonfinite_since_ < kStepsAfterNonfinite) return;
  died_at_ = step + 1;
  died_of_ = DeathCause::kWeights;
}

// Values of one shape at a time are in memory.
void Lane::add_memory(ProcessMemory& memory) const {
  int64_t values = 0, gradients = 0;
  for (const auto& runner : runners_) {
    const ValueStore& store = runner->values();
    if (store.bytes() < values) continue;
    values = store.bytes();
    gradients = store.gradient_bytes();
  }
  memory.value_bytes += values - gradients;
  memory.gradient_bytes += gradients;
  memory.state_bytes += storage_.bytes() + gradients_.bytes() + update_.bytes();
}

LaneStateView Lane::state() const {
  LaneStateView state;
  storage_.view(state);
  state.scalers = scalers_.states();
  state.died_at = died_at_;
  state.died_of = died_of_;
  state.nonfinite_since = nonfinite_since_;
  return state;
}

void Lane::restore(LaneState state) {
  ProblemList problems("checkpoint, lane '" + frame_.description.name + "'");
  storage_.check(state, problems);
  const auto expect = [&](const char* what, size_t found, size_t here) {
    if (found == here) return;
    problems.add(fmt::format("{} {}, this run has {}", found, what, here));
  };
  expect("loss scalers", state.scalers.size(), scalers_.count());
  expect("parameters", state.missed.size(), frame_.context.step_graph->parameters.size());
  expect("parameter groups", state.optimizer_steps.size(), frame_.context.groups.size());
  problems.throw_if_any();
  storage_.restore(state);
  scalers_.restore(state.scalers);
  died_at_ = state.died_at;
  died_of_ = state.died_of;
  nonfinite_since_ = state.nonfinite_since;
}

}  // namespace lockstep
