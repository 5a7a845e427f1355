// What does the captured run itself show as a lane?
// Loss, loss scale and gradient norm, as PyTorch recorded them; no tensor of it was looked at, so
// no site has statistics.
#pragma once

#include "src/train/captured/capture.h"
#include "src/train/lane.h"

namespace lockstep {

LaneDescription describe_captured_lane(const Capture& capture);
std::string describe_captured_data(const Capture& capture);
// Requires: `out` is cleared, `step` is one of the capture's.
void fill_captured_step(const Capture& capture, const LaneContext& context, int64_t step,
                        LaneStep& out);

}  // namespace lockstep
