// The optimizer of a lane: new weights, masters and states from the step's gradients, and what is
// recorded of them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "src/train/lane/lane_frame.h"
#include "src/train/lane/lane_gradients.h"
#include "src/train/lane/lane_storage.h"

namespace lockstep {

class LaneUpdate {
 public:
  // All must outlive the update. Holds no tensor before start(), when the parameters have theirs.
  LaneUpdate(const LaneFrame& frame, LaneStorage& storage, LaneGradients& gradients);
  void start();

  // One step of every parameter with a gradient, but for the groups that skip it.
  // `reference`: has run; null: this is the reference.
  void run(const std::vector<bool>& skips, const LaneUpdate* reference, LaneStep& record);
  // Some number of the optimizer has fewer exponents than FP32.
  bool may_overflow() const;
  int64_t bytes() const;  // of its tensors, also before they are there

 private:
  // Statistics of the optimizer's roundings; unset if all formats are the container's own.
  struct Roundings {
    std::optional<TensorStats> weight, update, states[kMaxOptimizerStates];
    UpdateStats changes;
  };

  Tensor& update_of(size_t parameter);
  template <typename T>
  void update(size_t parameter, bool skip, const LaneUpdate* reference, LaneStep& record);
  template <typename T>
  void skip_step(const LaneParameter& p, Tensor& dw, Roundings& out) const;
  template <typename T>
  void take_step(size_t parameter, Tensor& dw, Roundings& out);
  // A weight that the lane does not train.
  template <typename T>
  void add_recorded(LaneParameter& p, const RecordedUpdate& update) const;
  template <typename T>
  void record_update(size_t parameter, bool skip, const Tensor& dw, const Roundings& measured,
                     const LaneUpdate* reference, LaneStep& record);
  // weight = round(master). `stats` may be null.
  template <typename T>
  void round_master(LaneParameter& p, TensorStats* stats) const;
  void record_site(int32_t site, const Tensor& values, const TensorStats& stats,
                   const Format& format, const Tensor* reference, LaneStep& record) const;
  QuantizeSpec update_rounding(const Format* format, int32_t site) const;
  const Format* updated_format(const LaneParameter& p) const;

  const LaneFrame& frame_;
  LaneStorage& storage_;
  LaneGradients& gradients_;
  std::vector<Tensor> kept_;         // the reference's: dw of the last step, by parameter
  std::map<Shape, Tensor> scratch_;  // the others': dw of a weight of that shape
};

}  // namespace lockstep
