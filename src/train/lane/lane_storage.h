// What a lane keeps between steps.
// Weights, masters, optimizer states, buffers and the state of delayed scaling: how they are stored
// in the lane's formats, how a lane restarts from another, what a checkpoint has of them. It knows
// no gradients.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "src/core/error.h"
#include "src/execute/scaling_state.h"
#include "src/train/lane/lane_frame.h"
#include "src/train/run_state.h"
#include "src/update/stored_parameter.h"

namespace lockstep {

struct LaneParameter : StoredParameter {
  std::string name;
  const LaneContext::Update* sites;  // and its group
  const Format* format;              // of the weight
  std::vector<bool> reached;         // by backward pass: whether it has a gradient on some path
  bool trains = false;               // true: some pass has one
  int64_t missed = 0;                // steps of its group in which it had none
};

class LaneStorage {
 public:
  // `frame` and `runners` (programs of the lane) must outlive the storage. Holds no tensor yet.
  LaneStorage(const LaneFrame& frame, const std::vector<std::unique_ptr<StepRunner>>& runners);
  void start(const std::map<std::string, Tensor>& initial);  // see Lane
  LaneStorage(const LaneStorage&) = delete;  // programs hold the addresses of its tensors
  LaneStorage& operator=(const LaneStorage&) = delete;

  std::vector<LaneParameter>& parameters() { return parameters_; }  // in the graph's order
  const std::vector<LaneParameter>& parameters() const { return parameters_; }
  // By parameter group: steps taken, without skipped ones.
  std::vector<int64_t>& optimizer_steps() { return optimizer_steps_; }

  // See Lane::bind_state.
  void bind_to(StepRunner& runner, bool masters) const;
  void learn_scaling(StepRunner& runner) { runner.executor().scaled_casts().learn(scaling_); }
  void describe_formats(std::vector<std::string>& formats) const;  // by site
  // The buffers that a pass has changed: those of worker 0, after the pass of the last worker.
  void take_mutations(int64_t worker);

  // Rounds with the key of the previous step: this is its end state.
  void restart_from(const LaneStorage& reference, int64_t step);
  // State k as its codes hold it; nothing where it has none. `stats` may be null.
  void encode_state(LaneParameter& parameter, size_t k, TensorStats* stats) const;
  const StateCodes* codes_of(const LaneParameter& parameter, size_t k) const;  // null: none
  void observe();  // see Lane::observe_stored
  void move_weights_by_one_ulp(int64_t step);
  // Writes what was measured of stored values before the step.
  void record(LaneStep& record);

  void keep_buffers();
  void take_buffers_back();
  bool buffers_finite() const;  // but for those that were not finite when they were kept
  bool weights_finite() const;

  int64_t bytes() const;  // of its tensors, also before they are there
  // Tensors by their names in checkpoints, and the numbers that belong to them.
  void view(LaneStateView& state) const;
  void check(const LaneState& state, ProblemList& problems) const;
  void restore(LaneState& state);

 private:
  void add_parameter(const Parameter& parameter,
                     const std::vector<std::unique_ptr<StepRunner>>& runners);
  void start_parameter(LaneParameter& p, const Shape& shape,
                       const std::map<std::string, Tensor>& initial);
  bool has_master(const LaneParameter& p) const;
  bool has_compensation(const LaneParameter& p) const;
  template <typename Self, typename Visit>
  static void visit_tensors(Self& self, Visit visit);
  QuantizeSpec buffer_rounding(const std::string& name) const;
  // to = round(exact), measured at the value's storage site.
  void store_measured(const std::string& value_id, const Tensor& exact, Tensor& to,
                      const QuantizeSpec& spec);
  void store_weight(LaneParameter& parameter, const Tensor& exact);
  void tap_weights() const;

  const LaneFrame& frame_;
  ScalingState scaling_;  // of delayed scaling; empty without it
  std::map<std::string, Tensor> kept_scaling_;
  std::vector<LaneParameter> parameters_;
  std::map<std::string, Tensor> buffers_, kept_buffers_;
  std::map<std::string, Tensor> next_buffers_;  // worker 0's, while the others run
  std::vector<int64_t> optimizer_steps_;
  // Statistics of weights, buffers and constants by storage site, until the step that they belong
  // to ends.
  std::map<int32_t, SiteRecord> stored_;
};

}  // namespace lockstep
