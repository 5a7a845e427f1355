// A lane is one policy on one target: its program, and everything that is kept between steps. Its
// passes run in a StepRunner; storage, loss scales, gradients and the optimizer have a class each.
// A lane knows the reference lane only as something to compare with, or to restart from (synced
// mode).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/execute/step_runner.h"
#include "src/train/lane/lane_context.h"
#include "src/train/lane/lane_frame.h"
#include "src/train/lane/lane_gradients.h"
#include "src/train/lane/lane_name.h"
#include "src/train/lane/lane_scalers.h"
#include "src/train/lane/lane_storage.h"
#include "src/train/lane/lane_update.h"
#include "src/train/run_description.h"
#include "src/train/run_state.h"
#include "src/train/step_record.h"

namespace lockstep {

// A lane whose weights became non-finite takes this many more steps before it stops.
inline constexpr int64_t kStepsAfterNonfinite = 5;

// The reference may be this many nodes ahead of the other lanes, so that they run at the same time.
inline constexpr int kReferenceLead = 1;

class Lane {
 public:
  // Has its programs, and no tensor of a weight's size. Throws: InputError from lowering.
  Lane(const LaneContext& context, const LaneDescription& description);
  // Before all else but add_memory(). `initial`: FP32 values by parameter and buffer name, rounded
  // here to the lane's storage, and optionally optimizer states as "state/NAME/INDEX".
  void start(const std::map<std::string, Tensor>& initial);
  Lane(const LaneContext& context, const LaneDescription& description,
       const std::map<std::string, Tensor>& initial)
      : Lane(context, description) {
    start(initial);
  }
  Lane(const Lane&) = delete;  // its parts refer to each other
  Lane& operator=(const Lane&) = delete;

  const LaneDescription& description() const { return frame_.description; }
  bool alive_at(int64_t step) const { return died_at_ < 0 || step < died_at_; }
  DeathCause died_of() const { return died_of_; }

  // How much of what follows is measured, until the next call. The constructor measures what it
  // stores if the run measures at all.
  void measure(SiteDetail detail) { frame_.detail = detail; }
  // See FullMeasurer::tap; also the values of updates and of what they change.
  void tap(ValueTap* tap);

  // A step's stages in order, and queries. `reference` is null for the reference itself.
  void restart_from(const Lane& reference, int64_t step);  // synced mode: its state, rounded
  // Synced mode, the reference: what the others restart from.
  void observe_stored() { storage_.observe(); }
  void move_weights_by_one_ulp(int64_t step) {
    storage_.move_weights_by_one_ulp(step);
  }  // the twin
  // begin_micro_batch, run_node and finish_micro_batch run per micro-batch and, within it, per
  // worker; statistics of nodes go to `sites`. Workers share weights and begin with equal buffers;
  // worker 0's are kept. `sites` may be empty: the inputs are not measured.
  void begin_micro_batch(int64_t step, int64_t micro_batch, const Batch& batch, int64_t worker = 0,
                         const Lane* reference = nullptr, std::span<SiteRecord> sites = {});
  void run_node(int node, const Lane* reference, std::vector<SiteRecord>& sites);
  // After a node has run here and in the reference: adds what it says of the values that are
  // watched.
  void add_watched(int node, const Lane& reference, std::vector<WatchedStats>& watched) const;
  // Whether it may run on another thread than the other lanes do. A device is fed by one thread.
  bool may_run_apart() const { return !frame_.kernels().uses_device; }
  void finish_micro_batch(int64_t micro_batch, LaneStep& record, int64_t worker = 0);
  // With several workers, after all micro-batches. The reference must have entered, but not
  // reduced: entering gradients are compared with its own.
  void enter_all_reduce(const Lane* reference, LaneStep& record);
  void all_reduce(const Lane* reference, LaneStep& record);
  // After all passes: whether the step's loss, its gradients as the scaler checks them, and the
  // buffers that were finite before it are finite. Requires: keep_buffers().
  bool is_finite(const LaneStep& record) const;
  bool weights_finite() const { return storage_.weights_finite(); }
  bool update_may_overflow() const { return update_.may_overflow(); }
  // Whether the policy may repeat a step's batch, and whether it does after `attempts`. If so, the
  // scaler has moved, and every lane that repeats the step discards the attempt's buffer updates.
  bool may_replay() const { return frame_.policy().loss_scale_use.replay; }
  bool tries_again(int64_t attempts);
  void keep_buffers() { storage_.keep_buffers(); }
  void take_buffers_back() { storage_.take_buffers_back(); }
  void finish_step(const Lane* reference, LaneStep& record);

  // Adds what this lane keeps in memory, or will.
  void add_memory(ProcessMemory& memory) const;
  LaneStateView state() const;
  // Throws: InputError when a tensor is missing or has another shape.
  void restore(LaneState state);

  // Binds weights and buffers to another program (evaluation): one of the same policy or, with
  // `masters`, one in FP32, which uses the masters if there are any.
  void bind_state(StepRunner& runner, bool masters = false) const {
    storage_.bind_to(runner, masters);
  }

 private:
  std::vector<std::unique_ptr<StepRunner>> make_runners();
  void survey_programs(const std::vector<std::unique_ptr<StepRunner>>& runners);
  void choose_runner(size_t number);
  void follow_death();

  LaneFrame frame_;
  std::vector<std::unique_ptr<StepRunner>> runners_;  // by LaneContext::graph_of
  size_t runner_ = 0;                                 // that of the micro-batch in progress
  LaneScalers scalers_;
  LaneStorage storage_;
  LaneGradients gradients_;
  LaneUpdate update_;
  int64_t died_at_ = -1, nonfinite_since_ = -1;
  DeathCause died_of_ = DeathCause::kAlive;
};

}  // namespace lockstep
