// What does one lane keep, and what does it do in a step?
// A lane is one policy on one target: its program, and everything that stays between steps
// (weights, masters, optimizer states, buffers, loss scale). It knows the reference lane only as
// something to be compared with, or to restart from (synced mode).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/capture/captured_loop.h"
#include "src/execute/executor.h"
#include "src/policy/loss_scale.h"
#include "src/train/lockstep.h"
#include "src/update/parameter_groups.h"

namespace lockstep {

// A lane whose weights became non-finite takes this many more steps before it stops.
inline constexpr int64_t kStepsAfterNonfinite = 5;

// The description of a lane by name: its policy, engine and target. `policy_text`: what the lane's
// policy file held when the run began; without it the file is read.
// Throws: InputError: unknown policy, target not served.
LaneDescription describe_lane(std::string_view name, const std::string* policy_text = nullptr);
inline Container container_of(const LaneDescription& lane) {
  return lane.policy.name == kTruthLane ? Container::kF64 : Container::kF32;
}

// The step on batches of one shape.
struct StepGraph {
  Graph graph;
  SiteTable sites;
};

// What all lanes of a run share; must outlive them.
struct LaneContext {
  struct Update {  // of one parameter: its group, and its sites, -1 where there is none
    size_t group = 0;
    int32_t update = -1, master = -1, weight = -1;
    // Of the all-reduce, where there are several workers, by backward pass.
    std::vector<int32_t> entering, reduced;
    std::vector<int32_t> states;
  };
  const Graph* step_graph = nullptr;
  const SiteTable* sites = nullptr;
  const RunOptions* options = nullptr;
  std::vector<OptimizerGroup> groups;
  std::map<std::string, Update> updates;  // by parameter name
  std::vector<std::string> losses;        // loss_names()
  // By backward pass and site: whether its values are on the way to or from that pass's loss.
  std::vector<std::vector<bool>> sites_of_pass;
  const CapturedLoop* loop = nullptr;  // of a capture; null: the options say what a step does
  // The step on batches of other shapes (CapturedLoop::graph_of names them from 1 on), their sites
  // numbered as in `sites`.
  std::span<const StepGraph> other_shapes = {};

  // The numbers and the learning rate of a group in a step.
  const HyperNumbers& numbers(size_t group, int64_t step) const;
  double lr(size_t group, int64_t step) const;
  int64_t micro_batches(int64_t step) const;
  // Which graph a micro-batch runs through: 0 is `step_graph`, then `other_shapes`.
  size_t graph_of(int64_t step, int64_t micro_batch) const;
  const Graph& graph(size_t number) const;
  // What a micro-batch's loss is divided by before backward.
  double loss_divisor(int64_t step, int64_t micro_batch) const;
};
LaneContext make_lane_context(const Graph& step_graph, const SiteTable& sites,
                              const RunOptions& options, const CapturedLoop* loop = nullptr,
                              std::span<const StepGraph> other_shapes = {});

// The name of state tensor `index` of a parameter, in checkpoints and in a lane's initial values.
inline std::string state_key(const std::string& parameter, size_t index) {
  return "state/" + parameter + "/" + std::to_string(index);
}

// Binds a batch, masks included, to a program's inputs. Tensors whose format or container differs
// from the data's are converted into `copies`. Both must stay until the program has run.
void bind_inputs(Executor& executor, const Graph& graph, const Batch& batch, QuantizeSpec rounding,
                 std::map<std::string, Tensor>& copies);

class Lane {
 public:
  // `initial`: FP32 values by parameter and buffer name, rounded here to the lane's storage; where
  // there are any, optimizer states as "state/NAME/INDEX".
  // Throws: InputError from lowering.
  Lane(const LaneContext& context, const LaneDescription& description,
       const std::map<std::string, Tensor>& initial);
  Lane(const Lane&) = delete;  // programs hold the addresses of its tensors
  Lane& operator=(const Lane&) = delete;

  const LaneDescription& description() const { return description_; }
  bool alive_at(int64_t step) const { return died_at_ < 0 || step < died_at_; }
  DeathCause died_of() const { return died_of_; }

  // The parts of a step, in this order. `reference` is null for the reference itself.
  void restart_from(const Lane& reference, int64_t step);  // synced mode: its state, rounded
  void move_weights_by_one_ulp(int64_t step);              // the twin
  // These three for every micro-batch of the step, and there for every worker; what nodes measure
  // goes to `sites`. Workers share weights and begin with the same buffers; worker 0's stay.
  void begin_micro_batch(int64_t step, int64_t micro_batch, const Batch& batch, int64_t worker = 0);
  void run_node(int node, const Lane* reference, std::vector<SiteRecord>& sites);
  void finish_micro_batch(int64_t micro_batch, LaneStep& record, int64_t worker = 0);
  // With several workers, behind all micro-batches. The reference must have entered, but not
  // reduced: entering gradients are compared with its own.
  void enter_all_reduce(const Lane* reference, LaneStep& record);
  void all_reduce(const Lane* reference, LaneStep& record);
  // Replay: whether the policy wants the step's batch again, after this many attempts. If so the
  // scaler has moved; every lane that runs the step again forgets what the attempt did to buffers.
  bool may_replay() const { return description_.policy.loss_scale_use.replay; }
  bool tries_again(int64_t attempts);
  void keep_buffers() {
    kept_buffers_ = buffers_;
    kept_scaling_ = scaling_.tensors();
  }
  void take_buffers_back();
  void finish_step(const Lane* reference, LaneStep& record);

  LaneState state() const;
  // Throws: InputError when a tensor is missing or has another shape.
  void restore(const LaneState& state);

  // Binds weights and buffers to another program (evaluation): of the same policy, or with
  // `masters` one in FP32, which takes the masters where there are any.
  void bind_state(Executor& executor, bool masters = false) const;

 private:
  struct ParameterState {
    std::string name;
    std::vector<bool> reached;  // by backward pass: whether there is a gradient
    bool trains = false;        // there is one
    const Format* format;       // of the weight
    size_t group;               // of parameters, see LaneContext::groups
    Tensor weight, master;      // master: empty without master weights
    std::vector<Tensor> states;
    Tensor compensation;  // Kahan's, empty without
    // The gradient over the micro-batches and the losses, where it is changed before its use.
    Tensor sum;
    // Its parts by backward pass, where they are kept apart (Lane::parts_losses); of a pass without
    // a gradient empty.
    std::vector<Tensor> of_losses;
    // By sum (that of a pass, or the one) and worker, where there are several workers.
    std::vector<std::vector<Tensor>> of_workers;
    Tensor update;  // dw of the last step
    Tensor& sum_of(size_t pass) { return of_losses.empty() ? sum : of_losses[pass]; }
    const Tensor& sum_of(size_t pass) const { return of_losses.empty() ? sum : of_losses[pass]; }
    bool has_sum(size_t sum) const { return of_losses.empty() || reached[sum]; }
    Tensor& updated() { return master.empty() ? weight : master; }
    const Tensor& updated() const { return master.empty() ? weight : master; }
  };

  // The program for batches of one shape.
  struct Plan {
    const Graph& graph;
    Executor executor;
    std::map<std::string, Tensor> input_copies;
  };
  std::vector<std::unique_ptr<Plan>> make_plans() const;
  void choose_plan(size_t number);
  Executor& executor() { return plan_->executor; }
  const Executor& executor() const { return plan_->executor; }
  const Tensor& computed_gradient(const ParameterState& parameter, size_t pass) const;

  void survey_programs();
  void take_captured_scaler();
  // The policy's rounding is for formats narrower than FP32; what is kept in FP32 rounds to
  // nearest.
  QuantizeSpec rounding_to(const Format* format, int32_t site) const;
  int32_t siteless_key(int32_t kind, int64_t index) const;
  int32_t buffer_key(std::string_view name) const;
  void store_weight(ParameterState& parameter, const Tensor& exact);
  template <typename Self, typename Visit>
  static void visit_tensors(Self& self, Visit visit);
  const ParameterState* partner(const Lane* lane, const ParameterState& parameter) const;
  // lane_gradients.cc
  void make_sums(ParameterState& parameter) const;
  const Format* unscaled_format(const ParameterState& p) const;
  bool keeps_gradients() const;
  bool parts_losses() const;
  const Tensor& gradient(const ParameterState& parameter) const;
  void add_gradient(const Tensor& gradient, const Format* format, Tensor& sum, bool first);
  void keep_gradients(ParameterState& parameter, bool first, int64_t worker);
  void add_up_losses();
  double clip_gradients();
  std::vector<double> gradient_norms() const;
  double clip(const std::vector<size_t>& groups);
  QuantizeSpec update_rounding(const Format* format, int32_t site) const;
  void take_mutations(std::map<std::string, Tensor>& buffers);
  bool separates_losses() const { return !description_.scaler_losses.empty(); }
  size_t scaler_of(size_t pass) const { return separates_losses() ? pass : 0; }
  // The scale that applies now, as the loss, which is FP32, is multiplied by it.
  float scale(size_t scaler) const { return static_cast<float>(scales_[scaler].scale); }
  bool unscaling_changes(size_t scaler) const;
  template <typename T>
  void unscale(size_t scaler, const T* from, T* to, int64_t count) const;
  bool stays_finite(const Tensor& gradient, size_t scaler) const;
  std::vector<std::vector<bool>> found_inf() const;
  void record_scalers(const std::vector<std::vector<bool>>& found, const std::vector<bool>& skips,
                      LaneStep& record) const;
  bool weights_finite() const;
  void follow_death();
  template <typename T>
  void update_parameter(ParameterState& parameter, bool skip, const ParameterState* reference,
                        LaneStep& record);
  template <typename T>
  void record_site(int32_t site, const Tensor& values, const TensorStats& stats,
                   const Format& format, const Tensor* reference, LaneStep& record) const;
  // Of a gradient on its way through the all-reduce.
  SiteRecord gradient_record(const Tensor& values, const TensorStats& stats, const Format& format,
                             const Tensor* reference, double scale) const;

  const LaneContext& context_;
  LaneDescription description_;
  std::vector<std::unique_ptr<Plan>> plans_;  // by LaneContext::graph_of
  Plan* plan_;                                // that of the micro-batch in progress, or of the last
  ScalingState scaling_;                      // of delayed scaling, empty without
  std::map<std::string, Tensor> kept_scaling_;
  const LossScaler& scaler_;
  std::vector<ParameterState> parameters_;  // as in the graph
  std::map<std::string, Tensor> buffers_, kept_buffers_;
  std::map<std::string, Tensor> next_buffers_;  // worker 0's, until the others have run
  std::vector<Tensor> seeds_;           // by backward pass: its loss scale, in the seed's format
  Tensor unscaled_;                     // scratch: one gradient after unscaling
  std::vector<LossScaleState> scales_;  // one, or one per loss (LaneDescription::scaler_losses)
  int64_t step_ = -1;                   // the step in progress
  int64_t micro_step_ = -1;             // passes before this one, over steps, workers and all
  // By parameter group: steps taken, skipped ones not counted.
  std::vector<int64_t> optimizer_steps_;
  int64_t died_at_ = -1, nonfinite_since_ = -1;
  DeathCause died_of_ = DeathCause::kAlive;
};

}  // namespace lockstep
