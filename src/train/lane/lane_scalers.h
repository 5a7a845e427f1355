// The loss scales of a lane: one scaler, or one per loss.
#pragma once

#include <cstdint>
#include <vector>

#include "src/policy/loss_scale.h"
#include "src/train/lane/lane_frame.h"
#include "src/train/step_record.h"

namespace lockstep {

// By scaler and parameter group: whether a gradient has a value that is not finite.
using FoundInf = std::vector<std::vector<bool>>;

class LaneScalers {
 public:
  // A preset's dynamic scaler continues from a captured scaler's state, with its numbers, which
  // enter the frame's policy; a policy file's own numbers are kept. Names the losses with a scaler
  // each in the frame's description.
  explicit LaneScalers(LaneFrame& frame);

  size_t count() const { return states_.size(); }
  bool is_per_loss() const { return !frame_.description.scaler_losses.empty(); }
  size_t of_pass(size_t pass) const { return is_per_loss() ? pass : 0; }
  // The current scale, in FP32 because the loss that it multiplies is FP32.
  float scale(size_t scaler) const { return static_cast<float>(states_[scaler].scale); }
  bool unscaling_changes(size_t scaler) const;
  // Requires: `to` has as many elements, or more; it may be `from`.
  void unscale(size_t scaler, const Tensor& from, Tensor& to) const;
  // Whether a gradient is finite where the scaler checks: as it arrives, still scaled
  // (GradScaler.unscale_), or after the unscaling, which can overflow when the scale is below 1.
  bool stays_finite(const Tensor& gradient, size_t scaler) const;

  // Replay: moves the scalers that overflowed, the others have not counted the batch yet. False if
  // none did, or one would stop training, which end_step() does and records.
  bool try_again(const FoundInf& found);
  bool has_raised() const;  // some scaler stops training
  // By group: whether the step is skipped.
  std::vector<bool> skips(const FoundInf& found) const;
  // A column per scaler, before its update, from its own loss's gradients.
  void record(const FoundInf& found, const std::vector<bool>& skips, LaneStep& record) const;
  // The next scales. An overflow of any loss skips the step; each scaler moves by those of its own.
  void end_step(LaneStep& record);

  const std::vector<LossScaleState>& states() const { return states_; }
  void restore(const std::vector<LossScaleState>& states) { states_ = states; }

 private:
  void take_captured(LaneFrame& frame);
  bool checks() const { return scaler_.check != LossScaler::Check::kNone; }
  LossScaleState next(size_t scaler, bool overflowed) const;

  const LaneFrame& frame_;
  const LossScaler& scaler_;
  std::vector<LossScaleState> states_;
};

}  // namespace lockstep
