// What does the captured run itself show as a lane?
// Loss, loss scale and gradient norm, as PyTorch recorded them; no tensor of it was looked at, so
// no site has statistics.
#pragma once

#include "src/capture/capture.h"
#include "src/train/lane_context.h"
#include "src/train/run_description.h"
#include "src/train/step_record.h"

namespace lockstep {

LaneDescription describe_captured_lane(const Capture& capture);
// What of the captured run no lane, or no preset, does: a line each. They stand in the lane's
// policy text behind kCapturedNote.
std::vector<std::string> captured_notes(const Capture& capture);
inline constexpr std::string_view kCapturedNote = "# note: ";
// The preset of the loop's autocast; around a capture without any it is not asked for.
std::string autocast_preset(const Capture& capture);
// Around the model or inside it.
bool uses_autocast(const Capture& capture);
// The lane that does what PyTorch did, but for the order of sums; "" where no lane does: TF32,
// means over several ranks. It stands in the lane's policy text behind kCapturedEqual.
std::string equal_lane(const Capture& capture);
inline constexpr std::string_view kCapturedEqual = "# does the same: ";
std::string describe_captured_data(const Capture& capture);
// Requires: `out` is cleared, `step` is one of the capture's.
void fill_captured_step(const Capture& capture, const LaneContext& context, int64_t step,
                        LaneStep& out);

}  // namespace lockstep
