// See run_state.h.
#include "src/train/run_state.h"

namespace lockstep {

RunStateView view_of(const RunState& state) {
  RunStateView view{state.steps_done, {}};
  for (const LaneState& lane : state.lanes) {
    LaneStateView& of = view.lanes.emplace_back(LaneStateView{LaneNumbers(lane), {}});
    for (const auto& [name, tensor] : lane.tensors) of.tensors.emplace(name, &tensor);
  }
  return view;
}

LaneState copy_of(const LaneStateView& view) {
  LaneState state{LaneNumbers(view), {}};
  for (const auto& [name, tensor] : view.tensors) state.tensors.emplace(name, *tensor);
  return state;
}

RunState copy_of(const RunStateView& view) {
  RunState state{view.steps_done, {}};
  for (const LaneStateView& lane : view.lanes) state.lanes.push_back(copy_of(lane));
  return state;
}

}  // namespace lockstep
