// The state from which a run continues: that of every lane between two steps, as in checkpoints.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "src/core/tensor.h"
#include "src/policy/loss_scale.h"
#include "src/train/step_record.h"

namespace lockstep {

// Everything of a lane but its tensors.
struct LaneNumbers {
  std::vector<LossScaleState> scalers;
  std::vector<int64_t> optimizer_steps;  // by parameter group
  std::vector<int64_t> missed;           // by parameter: those of them without a gradient for it
  int64_t died_at = -1, nonfinite_since = -1;
  DeathCause died_of = DeathCause::kAlive;
};

// Everything needed to continue after step `steps_done - 1`. Tensors by name: "weight/NAME",
// "master/NAME", "state/NAME/k", "kahan/NAME", "buffer/NAME"; "scaling/NAME": scale, count and
// amaxes of a cast with delayed scaling.
struct LaneState : LaneNumbers {
  std::map<std::string, Tensor> tensors;
};
struct RunState {
  int64_t steps_done = 0;
  std::vector<LaneState> lanes;
};

// The same without copies: the tensors are those of a run, valid until its next step, or of a
// RunState.
struct LaneStateView : LaneNumbers {
  std::map<std::string, const Tensor*> tensors;
};
struct RunStateView {
  int64_t steps_done = 0;
  std::vector<LaneStateView> lanes;
};
RunStateView view_of(const RunState& state);
LaneState copy_of(const LaneStateView& view);
RunState copy_of(const RunStateView& view);

}  // namespace lockstep
