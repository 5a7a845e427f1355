// A lane is one policy on one target: its program, and everything that is kept between steps
// (weights, masters, optimizer states, buffers, loss scale). Its passes run in a StepRunner. A lane
// knows the reference lane only as something to compare with, or to restart from (synced mode).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/execute/scaling_state.h"
#include "src/execute/step_runner.h"
#include "src/policy/loss_scale.h"
#include "src/train/lane_context.h"
#include "src/train/lane_name.h"
#include "src/train/run_description.h"
#include "src/train/run_state.h"
#include "src/train/step_record.h"
#include "src/update/stored_parameter.h"

namespace lockstep {

// A lane whose weights became non-finite takes this many more steps before it stops.
inline constexpr int64_t kStepsAfterNonfinite = 5;

// The reference may be this many nodes ahead of the other lanes, so that they run at the same time.
inline constexpr int kReferenceLead = 1;

class Lane {
 public:
  // `initial`: FP32 values by parameter and buffer name, rounded here to the lane's storage, and
  // optionally optimizer states as "state/NAME/INDEX".
  // Throws: InputError from lowering.
  Lane(const LaneContext& context, const LaneDescription& description,
       const std::map<std::string, Tensor>& initial);
  Lane(const Lane&) = delete;  // programs hold the addresses of its tensors
  Lane& operator=(const Lane&) = delete;

  const LaneDescription& description() const { return description_; }
  bool alive_at(int64_t step) const { return died_at_ < 0 || step < died_at_; }
  DeathCause died_of() const { return died_of_; }

  // How much of what follows is measured, until the next call. The constructor measures what it
  // stores if the run measures at all.
  void measure(SiteDetail detail);
  // The stages of a step, in this order. `reference` is null for the reference itself.
  void restart_from(const Lane& reference, int64_t step);  // synced mode: its state, rounded
  void observe_stored();  // synced mode, the reference: what the others restart from
  void move_weights_by_one_ulp(int64_t step);  // the twin
  // These three run for every micro-batch of the step, and within it for every worker; statistics
  // of nodes go to `sites`. Workers share weights and begin with equal buffers; worker 0's are
  // kept. `sites` may be empty: the inputs are not measured.
  void begin_micro_batch(int64_t step, int64_t micro_batch, const Batch& batch, int64_t worker = 0,
                         const Lane* reference = nullptr, std::span<SiteRecord> sites = {});
  void run_node(int node, const Lane* reference, std::vector<SiteRecord>& sites);
  // Whether it may run on another thread than the other lanes do. A device is fed by one thread.
  bool may_run_apart() const { return !kernels().uses_device; }
  void finish_micro_batch(int64_t micro_batch, LaneStep& record, int64_t worker = 0);
  // See Executor::tap; also the values of updates and of what they change.
  void tap(ValueTap* tap);
  // With several workers, after all micro-batches. The reference must have entered, but not
  // reduced: entering gradients are compared with its own.
  void enter_all_reduce(const Lane* reference, LaneStep& record);
  void all_reduce(const Lane* reference, LaneStep& record);
  // After all passes of the step: whether its loss and gradients, still scaled, are finite, and the
  // buffers that were before it. Requires: keep_buffers().
  bool is_finite(const LaneStep& record) const;
  bool weights_finite() const;
  // Whether some number of the optimizer has fewer exponents than FP32.
  bool update_may_overflow() const;
  // Replay: whether the policy runs the step's batch again after this many attempts. If so, the
  // scaler has moved, and every lane that repeats the step discards the attempt's buffer updates.
  bool may_replay() const { return description_.policy.loss_scale_use.replay; }
  bool tries_again(int64_t attempts);
  void keep_buffers() {
    kept_buffers_ = buffers_;
    kept_scaling_ = scaling_.tensors();
  }
  void take_buffers_back();
  void finish_step(const Lane* reference, LaneStep& record);

  // Adds what this lane keeps in memory.
  void add_memory(ProcessMemory& memory) const;
  LaneStateView state() const;
  // Throws: InputError when a tensor is missing or has another shape.
  void restore(LaneState state);

  // Binds weights and buffers to another program (evaluation): one of the same policy or, with
  // `masters`, one in FP32, which uses the masters if there are any.
  void bind_state(StepRunner& runner, bool masters = false) const;

 private:
  struct ParameterState : StoredParameter {
    std::string name;
    std::vector<bool> reached;  // by backward pass: whether it has a gradient on some path
    bool trains = false;        // true: some pass has one
    bool has_gradient = false;  // the step's, so far: its paths lead through the weight
    int64_t missed = 0;         // steps of its group in which it had none
    const Format* format;       // of the weight
    size_t group;               // parameter group, see LaneContext::groups
    // The gradient over the micro-batches and the losses, if it is changed before its use.
    Tensor sum;
    // Its parts by backward pass, if they are kept apart (Lane::keeps_losses_apart); empty for a
    // pass without a gradient.
    std::vector<Tensor> of_losses;
    // By sum (one per pass, or a single one) and worker, if there are several workers.
    std::vector<std::vector<Tensor>> of_workers;
    Tensor update;  // the reference's: dw of the last step
    Tensor& sum_of(size_t pass) { return of_losses.empty() ? sum : of_losses[pass]; }
    const Tensor& sum_of(size_t pass) const { return of_losses.empty() ? sum : of_losses[pass]; }
    bool has_sum(size_t sum) const { return of_losses.empty() || reached[sum]; }
  };

  bool measures() const { return detail_ == SiteDetail::kEverything; }
  std::span<SiteRecord> records_of(std::span<SiteRecord> sites) const;  // none if nothing is kept
  std::vector<std::unique_ptr<StepRunner>> make_runners() const;
  void choose_runner(size_t number);
  Container container() const { return runner_->executor().container(); }
  const KernelSet& kernels() const { return runner_->kernels(); }
  bool is_reached(const ParameterState& parameter, size_t pass) const;
  const Tensor& computed_gradient(const ParameterState& parameter, size_t pass) const;

  void describe_formats();
  void survey_programs();
  void take_captured_scaler();
  // The micro-batch in progress.
  ExecutionKey key() const;
  QuantizeSpec rounding_to(const Format* format, int32_t site) const;
  QuantizeSpec buffer_rounding(const std::string& name) const;
  // to = round(exact), measured at the value's storage site.
  void store_measured(const std::string& value_id, const Tensor& exact, Tensor& to,
                      const QuantizeSpec& spec);
  void record_stored(LaneStep& record);
  void tap_weights();
  void store_weight(ParameterState& parameter, const Tensor& exact);
  template <typename Self, typename Visit>
  static void visit_tensors(Self& self, Visit visit);
  const ParameterState* partner(const Lane* lane, const ParameterState& parameter) const;
  // lane_gradients.cc
  void make_sums(ParameterState& parameter) const;
  const Format* unscaled_format(const ParameterState& p) const;
  bool keeps_gradients() const;
  bool keeps_losses_apart() const;
  const Tensor& gradient(const ParameterState& parameter) const;
  void keep_gradients(ParameterState& parameter, bool first, int64_t worker, LaneStep& record);
  void add_up_losses();
  double clip_gradients();
  std::vector<double> gradient_norms() const;
  double clip(const std::vector<size_t>& groups);
  QuantizeSpec update_rounding(const Format* format, int32_t site) const;
  bool separates_losses() const { return !description_.scaler_losses.empty(); }
  size_t scaler_of(size_t pass) const { return separates_losses() ? pass : 0; }
  // The current scale, in FP32 because the loss that it multiplies is FP32.
  float scale(size_t scaler) const { return static_cast<float>(scales_[scaler].scale); }
  bool unscaling_changes(size_t scaler) const;
  template <typename T>
  void unscale(size_t scaler, const T* from, T* to, int64_t count) const;
  bool stays_finite(const Tensor& gradient, size_t scaler) const;
  std::vector<std::vector<bool>> found_inf() const;
  void record_scalers(const std::vector<std::vector<bool>>& found, const std::vector<bool>& skips,
                      LaneStep& record) const;
  void follow_death();
  template <typename T>
  void update_parameter(ParameterState& parameter, bool skip, const ParameterState* reference,
                        LaneStep& record);
  template <typename T>
  void record_site(int32_t site, const Tensor& values, const TensorStats& stats,
                   const Format& format, const Tensor* reference, LaneStep& record) const;
  // A gradient during the all-reduce.
  SiteRecord gradient_record(const Tensor& values, const TensorStats& stats, const Format& format,
                             const Tensor* reference, double scale) const;

  const LaneContext& context_;
  LaneDescription description_;
  std::vector<std::unique_ptr<StepRunner>> runners_;  // by LaneContext::graph_of
  StepRunner* runner_;    // of the micro-batch in progress, or of the last one
  ScalingState scaling_;  // of delayed scaling; empty without it
  std::map<std::string, Tensor> kept_scaling_;
  const LossScaler& scaler_;
  std::vector<ParameterState> parameters_;  // in the graph's order
  std::map<std::string, Tensor> buffers_, kept_buffers_;
  std::map<std::string, Tensor> next_buffers_;  // worker 0's, while the others run
  Tensor unscaled_;                             // scratch: one gradient after unscaling
  std::map<Shape, Tensor> updates_;             // scratch: dw of a weight of that shape
  // The records of weights, buffers and constants by storage site, until the step that they belong
  // to ends.
  std::map<int32_t, SiteRecord> stored_;
  std::vector<LossScaleState> scales_;  // one, or one per loss (LaneDescription::scaler_losses)
  SiteDetail detail_;                   // of what is measured now
  int64_t step_ = -1;                   // the step in progress
  int64_t micro_step_ = -1;             // number of earlier passes, over all steps and workers
  // By parameter group: steps taken, without skipped ones.
  std::vector<int64_t> optimizer_steps_;
  ValueTap* tap_ = nullptr;
  int64_t died_at_ = -1, nonfinite_since_ = -1;
  DeathCause died_of_ = DeathCause::kAlive;
};

}  // namespace lockstep
