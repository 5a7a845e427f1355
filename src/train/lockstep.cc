// The step loop over all lanes, and what stands around it: options, resume, evaluation,
// checkpoints.
#include "src/train/lockstep.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <set>

#include "src/core/error.h"
#include "src/core/text.h"
#include "src/data/noise.h"
#include "src/data/sources.h"
#include "src/graph/autodiff.h"
#include "src/graph/same_step.h"
#include "src/models/model.h"
#include "src/train/captured_lane.h"
#include "src/train/evaluate.h"
#include "src/train/lane.h"
#include "src/train/loss_passes.h"
#include "src/train/run_setup.h"
#include "src/update/parameter_groups.h"
#include "src/update/schedules.h"
#include "src/update/vanishing.h"

namespace lockstep {
namespace {

class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds), start_(Clock::now()) {}
  ~Stopwatch() { seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double& seconds_;
  Clock::time_point start_;
};

}  // namespace

struct LockstepRun::Impl {
  Impl(RunOptions wanted, const std::map<std::string, Tensor>* start);
  Impl(RunOptions wanted, const Capture& capture);

  // `forward`: the main graph, then the same model for batches of other shapes.
  void make_lanes(std::vector<Graph> forward, const std::map<std::string, Tensor>& initial);
  void add_shape(const Graph& forward, const std::function<int(const Parameter&)>& state_count_of);
  Graph step_of(const Graph& forward) const;
  Batch batch(int64_t step, int64_t micro, int64_t worker) const;

  void clear(LaneStep& lane, bool alive) const;
  void clear_sites(std::vector<SiteRecord>& records) const;
  // work(lane's index, the reference or null, the lane's record), timed.
  template <typename Work>
  void each_active(Work work);
  void run_batches(int64_t step);
  void replay_overflows(int64_t step);
  void run_micro_batch(int64_t step, int64_t micro, int64_t worker);
  void run_step(int64_t step);
  void evaluate();
  void hand_out_checkpoint();
  RunState state() const;

  RunOptions options;
  const Model* model = nullptr;  // null: a capture
  std::unique_ptr<DataSet> data;
  const Capture* capture = nullptr;
  CapturedLoop loop;  // the capture's
  Graph graph;
  SiteTable sites;
  std::vector<StepGraph> other_shapes;
  LaneContext context;
  std::vector<std::unique_ptr<Lane>> lanes;  // the reference first
  std::unique_ptr<Evaluator> evaluator;
  RunDescription description;
  std::vector<Observer*> observers;
  Batch drawn;                                       // of the micro-batch in progress
  StepRecord record;                                 // reused: its histograms are large
  std::vector<std::vector<SiteRecord>> micro_sites;  // by lane: of one micro-batch among several
  std::vector<bool> active;                          // by lane: takes part in this attempt
  bool repeats = false;                              // this attempt is not the first
  LaneStep reference_again;                          // what the reference measures in repetitions
  int64_t steps_done = 0;
};

LockstepRun::Impl::Impl(RunOptions wanted, const std::map<std::string, Tensor>* start)
    : options(std::move(wanted)) {
  ProblemList problems("replay");
  check_run_numbers(options, problems);
  collect(problems, [&] { check_optimizer_spec(options.optimizer); });
  for (const ParameterGroup& group : options.groups) {
    collect(problems, [&] { check_optimizer_spec(group.optimizer); });
  }
  collect(problems, [&] { check_schedule(options.schedule); });
  collect(problems, [&] { model = &find_model(options.model); });
  if (model != nullptr && options.data.empty()) options.data = model->default_data;
  ModelSizes sizes;
  if (model == nullptr && !options.data.empty()) {
    collect(problems, [&] { find_data_source(options.data); });
  } else if (model != nullptr) {
    collect(problems, [&] {
      sizes = complete_sizes(*model, options.sizes);
      data = open_data_set(options.data, data_request(*model, sizes, options.seed));
    });
  }
  if (data != nullptr && options.batch > data->train_count()) {
    problems.add(fmt::format("batch {}: at most the {} training examples of '{}'", options.batch,
                             data->train_count(), options.data));
  }
  description.lanes = describe_lanes(options, problems);

  const ModelShape shape{options.batch / options.workers, data->image_shape(), data->class_count(),
                         sizes};
  Graph forward = model->build(shape, /*training=*/true);
  change_layers(options, forward, problems);
  collect(problems, [&] { check_groups(forward, options.groups); });
  problems.throw_if_any();
  std::map<std::string, Tensor> initial = initial_state(*model, sizes, forward, options.seed);
  if (start != nullptr) {
    take_start(*start, initial, problems);
    problems.throw_if_any();
  }
  make_lanes({forward}, initial);
  evaluator =
      std::make_unique<Evaluator>(*model, sizes, *data, options.optimizer, options.batch,
                                  options.seed, options.batch_norm_eps, options.eval_in_fp32);
  description.data = data->describe();
}

LockstepRun::Impl::Impl(RunOptions wanted, const Capture& from)
    : options(std::move(wanted)), capture(&from) {
  ProblemList problems("replay");
  collect(problems, [&] {
    loop = make_captured_loop(from, options.steps);
    take_loop_options(from, loop, options);
  });
  if (problems.empty()) check_run_numbers(options, problems);
  std::erase(options.lanes, std::string(kCapturedLane));  // always there
  description.lanes = describe_lanes(options, problems);
  std::vector<Graph> forward;
  for (const size_t number : loop.graphs) forward.push_back(captured_graph(from, number));
  for (Graph& one : forward) {
    ProblemList of_one("replay");  // the same in all
    change_layers(options, one, of_one);
    of_one.throw_if_any();
  }
  make_lanes(std::move(forward), captured_start(from, loop));
  description.data = describe_captured_data(from);
  if (options.steps > static_cast<int64_t>(from.steps.size())) return;  // it ended before the run
  description.lanes.push_back(describe_captured_lane(from));
  record.lanes.resize(description.lanes.size());
}

Graph LockstepRun::Impl::step_of(const Graph& forward) const {
  return options.backward_per_loss ? differentiate_per_loss(forward) : differentiate(forward);
}

// Refuses a graph that is another step than the main one: its sites would have no place in the run.
void LockstepRun::Impl::add_shape(const Graph& forward,
                                  const std::function<int(const Parameter&)>& state_count_of) {
  StepGraph& other = other_shapes.emplace_back();
  other.graph = step_of(forward);
  try {
    const auto nodes = match_nodes(graph, other.graph);
    other.sites = sites_numbered_as(sites, make_sites(other.graph, state_count_of), nodes);
  } catch (const InputError& error) {
    const int64_t first = loop.first_step(other_shapes.size());
    const std::string what = fmt::format(
        "step {}: its batch of {} does not run through the same step as one of {}: {}", first,
        batch_text(other.graph), batch_text(graph), join(error.problems(), "; "));
    throw InputError(what, first > 0 ? fmt::format("--steps {} ends before it", first)
                                     : "capture with batches of one shape, e.g. drop_last=True");
  }
}

void LockstepRun::Impl::make_lanes(std::vector<Graph> forward,
                                   const std::map<std::string, Tensor>& initial) {
  graph = step_of(forward.front());
  const auto groups = capture != nullptr ? loop.groups.front() : optimizer_groups(options);
  const auto state_count_of = [&](const Parameter& parameter) {
    return static_cast<int>(groups[context.updates.at(parameter.name).group].states.size());
  };
  const CapturedLoop* script = capture != nullptr ? &loop : nullptr;
  context = make_lane_context(graph, sites, options, script);  // for the groups alone
  sites = make_sites(graph, state_count_of, options.workers);
  for (size_t i = 1; i < forward.size(); ++i) add_shape(forward[i], state_count_of);
  context = make_lane_context(graph, sites, options, script, other_shapes);
  ProblemList problems("replay");
  for (LaneDescription& lane : description.lanes) {
    if (has_scaler_per_loss(lane.policy, graph) && lane.policy.loss_scale_use.clip_before_unscale) {
      problems.add("lane '" + lane.name +
                       "': clip = \"before_unscale\" with a scaler for each loss: gradients of "
                       "several scales never are one gradient",
                   "[loss_scale] per_loss = \"shared\", or --backward joint");
    }
    collect(problems, [&] {
      lanes.push_back(std::make_unique<Lane>(context, lane, initial));
      lane = lanes.back()->description();  // with what its engine left to the software kernels
      if (container_of(lane) == Container::kF32) {  // the truth lane loses none
        lane.warnings = vanishing_constants(lane.policy, options);
      }
    });
  }
  problems.throw_if_any();
  description.step_graph = &graph;
  description.sites = &sites;
  description.options = &options;
  record.lanes.resize(lanes.size());
  micro_sites.resize(lanes.size());
}

void LockstepRun::Impl::clear(LaneStep& lane, bool alive) const {
  lane.alive = alive;
  lane.loss = lane.seconds = 0;
  lane.losses.assign(context.losses.size(), 0);
  lane.lr.clear();
  lane.gradient_norm = std::numeric_limits<double>::quiet_NaN();
  lane.gradient_norms.clear();
  lane.attempts = 1;
  lane.scalers.assign(1, {});
  lane.updates.assign(sites.sites.size(), {});
  clear_sites(lane.sites);
}

void LockstepRun::Impl::clear_sites(std::vector<SiteRecord>& records) const {
  records.resize(sites.sites.size());
  for (SiteRecord& site : records) {
    if (site.measured || site.health.samples > 0) site = {};
  }
}

template <typename Work>
void LockstepRun::Impl::each_active(Work work) {
  const Lane& reference = *lanes[0];
  for (size_t l = 0; l < lanes.size(); ++l) {
    if (!active[l]) continue;
    LaneStep& out = repeats && l == 0 ? reference_again : record.lanes[l];
    const Stopwatch watch(out.seconds);
    work(l, l == 0 ? nullptr : &reference, out);
  }
}

Batch LockstepRun::Impl::batch(int64_t step, int64_t micro, int64_t worker) const {
  const int64_t at = step * options.accumulate + micro;
  const auto indices = batch_indices(*data, at, options.batch, options.seed);
  const auto share = static_cast<size_t>(options.batch / options.workers);
  Batch batch = data->gather(std::span(indices).subspan(static_cast<size_t>(worker) * share, share),
                             static_cast<uint64_t>(at));
  add_noise(graph, options.seed, static_cast<uint64_t>(at * options.workers + worker), batch);
  return batch;
}

// Micro-batches take consecutive batches of the data, workers consecutive parts of each. What
// several measure is merged.
void LockstepRun::Impl::run_micro_batch(int64_t step, int64_t micro, int64_t worker) {
  if (capture == nullptr) {
    drawn = batch(step, micro, worker);
  } else {
    unpack_batch(capture->steps[loop.at(step)].micro[static_cast<size_t>(micro)], drawn);
  }
  const bool several = options.parts() > 1;
  each_active([&](size_t l, const Lane*, LaneStep&) {
    if (several) clear_sites(micro_sites[l]);
    lanes[l]->begin_micro_batch(step, micro, drawn, worker);
  });
  const Graph& nodes_of = context.graph(context.graph_of(step, micro));
  for (int node = 0; node < static_cast<int>(nodes_of.nodes.size()); ++node) {
    each_active([&](size_t l, const Lane* ref, LaneStep& out) {
      lanes[l]->run_node(node, ref, several ? micro_sites[l] : out.sites);
    });
  }
  each_active([&](size_t l, const Lane*, LaneStep& out) {
    lanes[l]->finish_micro_batch(micro, out, worker);
    if (!several) return;
    for (size_t s = 0; s < out.sites.size(); ++s) out.sites[s].merge(micro_sites[l][s]);
  });
}

void LockstepRun::Impl::run_step(int64_t step) {
  record.step = step;
  active.clear();
  for (size_t l = 0; l < lanes.size(); ++l) {
    clear(record.lanes[l], lanes[l]->alive_at(step));
    record.lanes[l].died_of = lanes[l]->died_of();
    active.push_back(record.lanes[l].alive);
  }
  const bool replays = std::ranges::any_of(lanes, [](const auto& l) { return l->may_replay(); });
  each_active([&](size_t l, const Lane* ref, LaneStep&) {
    Lane& lane = *lanes[l];
    const bool synced = options.mode == LaneMode::kSynced;
    if (synced && ref != nullptr) lane.restart_from(*ref, step);
    const bool is_twin = lane.description().policy.name == kTwinLane;
    if (is_twin && (synced || step == 0)) lane.move_weights_by_one_ulp(step);
    if (replays) lane.keep_buffers();
  });
  run_batches(step);
  replay_overflows(step);
  each_active([&](size_t l, const Lane* ref, LaneStep& out) { lanes[l]->finish_step(ref, out); });
  if (record.lanes.size() > lanes.size()) {
    LaneStep& captured = record.lanes.back();
    clear(captured, true);
    fill_captured_step(*capture, context, step, captured);
  }
}

void LockstepRun::Impl::run_batches(int64_t step) {
  for (int64_t micro = 0; micro < context.micro_batches(step); ++micro) {
    for (int64_t worker = 0; worker < options.workers; ++worker) {
      run_micro_batch(step, micro, worker);
    }
  }
  if (options.workers == 1) return;
  each_active(
      [&](size_t l, const Lane* ref, LaneStep& out) { lanes[l]->enter_all_reduce(ref, out); });
  each_active([&](size_t l, const Lane* ref, LaneStep& out) { lanes[l]->all_reduce(ref, out); });
}

// Lanes that replay an overflowing batch run it again while the others wait; records are of the
// last attempt. The reference repeats it with them, to be compared with, and ends as it was.
void LockstepRun::Impl::replay_overflows(int64_t step) {
  const std::vector<bool> alive = active;
  for (;;) {
    active.assign(lanes.size(), false);
    for (size_t l = 0; l < lanes.size(); ++l) {
      active[l] = alive[l] && lanes[l]->tries_again(record.lanes[l].attempts);
    }
    if (std::ranges::count(active, true) == 0) break;
    active[0] = repeats = true;
    each_active([&](size_t l, const Lane*, LaneStep& out) {
      const double seconds = out.seconds;
      const int32_t attempts = out.attempts + 1;
      clear(out, true);
      out.seconds = seconds;
      out.attempts = attempts;
      lanes[l]->take_buffers_back();
    });
    run_batches(step);
  }
  active = alive;
  repeats = false;
}

void LockstepRun::Impl::evaluate() {
  std::vector<bool> alive;
  for (const auto& lane : lanes) alive.push_back(lane->alive_at(steps_done));
  const EvaluationRecord evaluation = evaluator->evaluate(lanes, alive, steps_done);
  for (Observer* observer : observers) observer->on_evaluation(evaluation);
}

RunState LockstepRun::Impl::state() const {
  RunState state;
  state.steps_done = steps_done;
  for (const auto& lane : lanes) state.lanes.push_back(lane->state());
  if (record.lanes.size() > lanes.size()) state.lanes.emplace_back();  // the captured one has none
  return state;
}

void LockstepRun::Impl::hand_out_checkpoint() {
  if (observers.empty()) return;
  const RunState now = state();
  for (Observer* observer : observers) observer->on_checkpoint(now);
}

LockstepRun::LockstepRun(RunOptions options, const std::map<std::string, Tensor>* start)
    : impl_(std::make_unique<Impl>(std::move(options), start)) {}
LockstepRun::LockstepRun(RunOptions options, const Capture& capture)
    : impl_(std::make_unique<Impl>(std::move(options), capture)) {}
LockstepRun::~LockstepRun() = default;

const RunDescription& LockstepRun::description() const {
  return impl_->description;
}
void LockstepRun::add_observer(Observer* observer) {
  impl_->observers.push_back(observer);
}
RunState LockstepRun::state() const {
  return impl_->state();
}

void LockstepRun::restore(const RunState& state) {
  ProblemList problems("checkpoint");
  const size_t lane_count = impl_->description.lanes.size();
  if (state.lanes.size() != lane_count) {
    problems.add(fmt::format("{} lanes, this run has {}", state.lanes.size(), lane_count));
  }
  if (state.steps_done < 0 || state.steps_done > impl_->options.steps) {
    problems.add(
        fmt::format("{} steps done, this run has {}", state.steps_done, impl_->options.steps));
  }
  problems.throw_if_any();
  for (size_t l = 0; l < impl_->lanes.size(); ++l) {
    collect(problems, [&] { impl_->lanes[l]->restore(state.lanes[l]); });
  }
  problems.throw_if_any();
  impl_->steps_done = state.steps_done;
}

// After each step: its record, then an evaluation if one is due, then a checkpoint, so that a
// checkpoint means that everything before it has been handed out.
bool LockstepRun::run(const std::atomic<bool>& stop) {
  Impl& run = *impl_;
  const RunOptions& options = run.options;
  for (Observer* observer : run.observers) observer->on_start(run.description);
  bool stopped = false;
  while (run.steps_done < options.steps && !stopped) {
    run.run_step(run.steps_done);
    ++run.steps_done;
    for (Observer* observer : run.observers) observer->on_step(run.record);
    const bool last = run.steps_done == options.steps;
    stopped = !last && stop.load();
    const bool evaluation_due =
        last || (options.eval_every > 0 && run.steps_done % options.eval_every == 0);
    if (evaluation_due && run.evaluator != nullptr) run.evaluate();
    if (last || stopped || run.steps_done % options.checkpoint_every == 0) {
      run.hand_out_checkpoint();
    }
  }
  for (Observer* observer : run.observers) observer->on_finish();
  return !stopped;
}

}  // namespace lockstep
