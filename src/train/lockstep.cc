// The step loop over all lanes, with resume, evaluation and checkpoints.
#include "src/train/lockstep.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>

#include "src/core/error.h"
#include "src/data/noise.h"
#include "src/policy/twin_lane.h"
#include "src/train/lane/captured_lane.h"
#include "src/train/lane/lane_threads.h"
#include "src/train/prepared_run.h"
#include "src/train/run_setup.h"

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

struct LockstepRun::Impl : PreparedRun {
  Impl(RunOptions wanted, const std::map<std::string, Tensor>* start);
  Impl(RunOptions wanted, Capture from);

  void make_room();
  Batch batch(int64_t step, int64_t micro, int64_t worker) const;

  void clear(LaneStep& lane, bool alive) const;
  void clear_sites(std::vector<SiteRecord>& records) const;
  LaneStep& record_of(size_t lane);
  bool merges_records() const { return options.micro_steps() > 1; }
  std::vector<SiteRecord>& sites_of(size_t lane, LaneStep& out) {
    return merges_records() ? micro_sites[lane] : out.sites;
  }
  template <typename Work>
  void timed(size_t lane, const Work& work);
  // work(lane's index, the reference or null, the lane's record), timed: the reference first.
  template <typename Work>
  void each_active(Work work);
  template <typename Work>
  void each_active_apart(Work work);
  void run_nodes(int count);
  void prepare(int64_t step);
  void run_batches(int64_t step);
  void measure(SiteDetail detail);
  void clear_attempt(LaneStep& out, int32_t attempts) const;
  bool breaks();
  void finish_step();
  void replay_overflows(int64_t step);
  void run_micro_batch(int64_t step, int64_t micro, int64_t worker);
  void run_step(int64_t step);
  void evaluate();
  void hand_out_checkpoint();
  RunStateView state() const;

  std::vector<Observer*> observers;
  Batch drawn;                                       // of the micro-batch in progress
  StepRecord record;                                 // reused: its histograms are large
  std::vector<std::vector<SiteRecord>> micro_sites;  // by lane: of one micro-batch among several
  std::vector<bool> active;                          // by lane: takes part in this attempt
  std::vector<bool> finished;                        // by lane: its update is done
  bool repeats = false;                              // this attempt is not the first
  LaneStep reference_again;                          // the reference's measurements in repetitions
  int64_t steps_done = 0;
  ValueTap* tap = nullptr;
  size_t tapped = 0;  // its lane
};

LockstepRun::Impl::Impl(RunOptions wanted, const std::map<std::string, Tensor>* start)
    : PreparedRun(std::move(wanted), start) {
  make_room();
}
LockstepRun::Impl::Impl(RunOptions wanted, Capture from)
    : PreparedRun(std::move(wanted), std::move(from)) {
  make_room();
}

void LockstepRun::Impl::make_room() {
  record.lanes.resize(description.lanes.size());
  micro_sites.resize(lanes.size());
}

void LockstepRun::Impl::clear(LaneStep& lane, bool alive) const {
  lane.alive = alive;
  lane.loss = lane.seconds = 0;
  lane.losses.assign(context.losses.size(), 0);
  lane.lr.clear();
  lane.gradient_norm = std::numeric_limits<double>::quiet_NaN();
  lane.gradient_norms.clear();
  lane.watched.assign(context.watched.size(), {});
  lane.attempts = 1;
  lane.device = {};
  lane.scalers.assign(1, {});
  clear_sites(lane.sites);
}

// For another attempt at the step. Its time and its device's work add up.
void LockstepRun::Impl::clear_attempt(LaneStep& out, int32_t attempts) const {
  const double seconds = out.seconds;
  const DeviceWork device = out.device;
  clear(out, true);
  out.seconds = seconds;
  out.device = device;
  out.attempts = attempts;
}

void LockstepRun::Impl::clear_sites(std::vector<SiteRecord>& records) const {
  records.resize(sites.sites.size());
  for (SiteRecord& site : records) {
    const bool is_set =
        site.measured || site.counted || site.update.measured || site.health.samples > 0;
    if (is_set) site = {};
  }
}

LaneStep& LockstepRun::Impl::record_of(size_t lane) {
  return repeats && lane == 0 ? reference_again : record.lanes[lane];
}

template <typename Work>
void LockstepRun::Impl::timed(size_t lane, const Work& work) {
  LaneStep& out = record_of(lane);
  const Stopwatch watch(out.seconds);
  work(lane, lane == 0 ? nullptr : lanes[0].get(), out);
}

template <typename Work>
void LockstepRun::Impl::each_active(Work work) {
  for (size_t l = 0; l < lanes.size(); ++l) {
    if (active[l]) timed(l, work);
  }
}

// As each_active(), but the lanes after the reference may run at the same time.
template <typename Work>
void LockstepRun::Impl::each_active_apart(Work work) {
  if (active[0]) timed(0, work);
  for_lanes(1, lanes.size(), lanes_share_threads(lanes), [&](size_t l) {
    if (active[l]) timed(l, work);
  });
}

// Every node of the step, in all active lanes. On one thread, the lanes follow the reference while
// its tensors are in cache. On several, it is a node ahead, and all lanes run at the same time.
void LockstepRun::Impl::run_nodes(int count) {
  const bool at_the_same_time = lanes_share_threads(lanes);
  const int lead = at_the_same_time ? kReferenceLead : 0;
  for (int ahead = 0; ahead < count + lead; ++ahead) {
    for_lanes(0, lanes.size(), at_the_same_time, [&](size_t lane) {
      const int node = lane == 0 ? ahead : ahead - lead;
      if (!active[lane] || node < 0 || node >= count) return;
      timed(lane, [&](size_t l, const Lane* ref, LaneStep& out) {
        lanes[l]->run_node(node, ref, sites_of(l, out));
        if (ref != nullptr) lanes[l]->add_watched(node, *ref, out.watched);
      });
    });
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

// Micro-batches are consecutive batches of the data, workers get consecutive parts of each. The
// statistics of several are merged.
void LockstepRun::Impl::run_micro_batch(int64_t step, int64_t micro, int64_t worker) {
  if (!capture) {
    drawn = batch(step, micro, worker);
  } else {
    unpack_batch(capture->steps[loop.at(step)].micro[static_cast<size_t>(micro)], drawn);
  }
  each_active_apart([&](size_t l, const Lane* ref, LaneStep& out) {
    if (merges_records()) clear_sites(micro_sites[l]);
    lanes[l]->begin_micro_batch(step, micro, drawn, worker, ref, sites_of(l, out));
  });
  const Graph& nodes_of = context.graph(context.graph_of(step, micro));
  run_nodes(static_cast<int>(nodes_of.nodes.size()));
  each_active_apart([&](size_t l, const Lane*, LaneStep& out) {
    lanes[l]->finish_micro_batch(micro, out, worker);
    if (!merges_records()) return;
    for (size_t s = 0; s < out.sites.size(); ++s) out.sites[s].merge(micro_sites[l][s]);
  });
}

void LockstepRun::Impl::run_step(int64_t step) {
  record.step = step;
  if (tap != nullptr) tap->values.clear();  // of the step before; a lane that stopped has none
  active.clear();
  finished.assign(lanes.size(), false);
  for (size_t l = 0; l < lanes.size(); ++l) {
    clear(record.lanes[l], lanes[l]->alive_at(step));
    record.lanes[l].died_of = lanes[l]->died_of();
    active.push_back(record.lanes[l].alive);
  }
  measure(options.measuring.detail(step));
  prepare(step);
  run_batches(step);
  // A step that was not due to be measured but broke in some lane is computed once more, with
  // statistics: the same numbers, and a culprit.
  if (!record.is_measured && options.measuring.on && breaks()) {
    each_active([&](size_t l, const Lane*, LaneStep& out) {
      clear_attempt(out, out.attempts);
      lanes[l]->take_buffers_back();
    });
    measure(SiteDetail::kEverything);
    prepare(step);
    run_batches(step);
  }
  replay_overflows(step);
  finish_step();
  if (record.lanes.size() > lanes.size()) {
    LaneStep& captured = record.lanes.back();
    clear(captured, true);
    fill_captured_step(*capture, context, step, captured);
  }
}

void LockstepRun::Impl::measure(SiteDetail detail) {
  record.is_measured = detail == SiteDetail::kEverything;
  for (const auto& lane : lanes) lane->measure(detail);
}

// What lanes do before their first batch of the step; doing it again changes nothing.
void LockstepRun::Impl::prepare(int64_t step) {
  const bool may_be_measured = options.measuring.on && !record.is_measured;
  const bool runs_again = may_be_measured || std::ranges::any_of(lanes, [](const auto& lane) {
                            return lane->may_replay();
                          });
  each_active_apart([&](size_t l, const Lane* ref, LaneStep&) {
    Lane& lane = *lanes[l];
    const bool synced = options.mode == LaneMode::kSynced;
    if (synced && ref != nullptr) lane.restart_from(*ref, step);
    if (synced && ref == nullptr && step > 0) lane.observe_stored();
    const bool is_twin = twin_number(lane.description().policy.name) > 0;
    if (is_twin && (synced || step == 0)) lane.move_weights_by_one_ulp(step);
    if (runs_again) lane.keep_buffers();
  });
}

// Whether the loss, a gradient, a buffer or a weight of some lane is not finite in this step, all
// of whose passes have run. Only the update tells whether weights stay finite: lanes where it may
// overflow finish the step here, and begin it again if one breaks.
bool LockstepRun::Impl::breaks() {
  bool broken = false;
  each_active(
      [&](size_t l, const Lane*, LaneStep& out) { broken = broken || !lanes[l]->is_finite(out); });
  if (broken) return true;
  std::map<size_t, LaneState> before;
  each_active([&](size_t l, const Lane*, LaneStep& out) {
    if (!lanes[l]->update_may_overflow()) return;
    before.emplace(l, copy_of(lanes[l]->state()));
    lanes[l]->finish_step(nullptr, out);
    finished[l] = true;
    broken = broken || !lanes[l]->weights_finite();
  });
  if (!broken) return false;
  for (auto& [l, state] : before) lanes[l]->restore(std::move(state));
  finished.assign(lanes.size(), false);
  return true;
}

void LockstepRun::Impl::finish_step() {
  each_active_apart([&](size_t l, const Lane* ref, LaneStep& out) {
    if (!finished[l]) lanes[l]->finish_step(ref, out);
  });
}

void LockstepRun::Impl::run_batches(int64_t step) {
  if (tap != nullptr && active[tapped]) tap->values.clear();  // of an earlier attempt
  for (int64_t micro = 0; micro < context.micro_batches(step); ++micro) {
    for (int64_t worker = 0; worker < options.workers; ++worker) {
      run_micro_batch(step, micro, worker);
    }
  }
  if (options.workers == 1) return;
  each_active([&](size_t, const Lane*, LaneStep& out) {  // the loss is the mean over the workers
    for (SiteRecord& site : out.sites) {
      site.effect.rounding /= static_cast<double>(options.workers);
      site.effect.range /= static_cast<double>(options.workers);
    }
  });
  each_active_apart(
      [&](size_t l, const Lane* ref, LaneStep& out) { lanes[l]->enter_all_reduce(ref, out); });
  each_active_apart(
      [&](size_t l, const Lane* ref, LaneStep& out) { lanes[l]->all_reduce(ref, out); });
}

// Lanes that replay an overflowing batch repeat it while the others wait; records are of the last
// attempt. The reference repeats it too, for comparison, and ends in the state it had.
void LockstepRun::Impl::replay_overflows(int64_t step) {
  const std::vector<bool> alive = active;
  for (;;) {
    active.assign(lanes.size(), false);
    for (size_t l = 0; l < lanes.size(); ++l) {
      active[l] = alive[l] && !finished[l] && lanes[l]->tries_again(record.lanes[l].attempts);
    }
    if (std::ranges::count(active, true) == 0) break;
    active[0] = repeats = true;
    each_active([&](size_t l, const Lane*, LaneStep& out) {
      clear_attempt(out, out.attempts + 1);
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
  const int64_t trained_on = steps_done * options.accumulate * options.batch;
  const int64_t most = options.eval_examples > 0 ? options.eval_examples : trained_on;
  const EvaluationRecord evaluation = evaluator->evaluate(lanes, alive, steps_done, most);
  for (Observer* observer : observers) observer->on_evaluation(evaluation);
}

RunStateView LockstepRun::Impl::state() const {
  RunStateView state;
  state.steps_done = steps_done;
  for (const auto& lane : lanes) state.lanes.push_back(lane->state());
  if (record.lanes.size() > lanes.size()) state.lanes.emplace_back();  // the captured lane has none
  return state;
}

void LockstepRun::Impl::hand_out_checkpoint() {
  if (observers.empty()) return;
  const RunStateView now = state();
  for (Observer* observer : observers) observer->on_checkpoint(now);
}

LockstepRun::LockstepRun(RunOptions options, const std::map<std::string, Tensor>* start)
    : impl_(std::make_unique<Impl>(std::move(options), start)) {}
LockstepRun::LockstepRun(RunOptions options, Capture capture)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(capture))) {}
LockstepRun::~LockstepRun() = default;

const RunDescription& LockstepRun::description() const {
  return impl_->description;
}
void LockstepRun::add_observer(Observer* observer) {
  impl_->observers.push_back(observer);
}
void LockstepRun::tap(std::string_view lane, ValueTap* tap) {
  for (size_t l = 0; l < impl_->lanes.size(); ++l) {
    if (impl_->lanes[l]->description().name != lane) continue;
    impl_->lanes[l]->tap(tap);
    impl_->tap = tap;
    impl_->tapped = l;
    return;
  }
  throw InputError(fmt::format("lane '{}': not one that this run computes", lane));
}
RunState LockstepRun::state() const {
  return copy_of(impl_->state());
}

void LockstepRun::restore(RunState state) {
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
    collect_problems(problems, [&] { impl_->lanes[l]->restore(std::move(state.lanes[l])); });
  }
  problems.throw_if_any();
  impl_->steps_done = state.steps_done;
}

// After each step come its record, an evaluation if one is due, then a checkpoint. A checkpoint
// thus means that observers have received everything before it.
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
