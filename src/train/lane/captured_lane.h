// The captured run as a lane: loss, loss scale and gradient norm as PyTorch recorded them. Its
// tensors were not measured, so no site has statistics.
#pragma once

#include "src/capture/capture.h"
#include "src/train/lane/lane_context.h"
#include "src/train/run_description.h"
#include "src/train/step_record.h"

namespace lockstep {

LaneDescription describe_captured_lane(const Capture& capture);
// What the captured run did that no lane, or no preset, does: one line each. The lane's policy text
// has each line after kCapturedNote.
std::vector<std::string> captured_notes(const Capture& capture);
inline constexpr std::string_view kCapturedNote = "# note: ";
inline constexpr std::string_view kRecordedNote =
    "each lane adds them to its own weights, and its gradients do not change them";
// The preset of the loop's autocast. Requires: the capture uses autocast.
std::string autocast_preset(const Capture& capture);
// The narrowest format in which the model itself holds parameters; "": FP32.
std::string weight_format(const Capture& capture);
// Whether PyTorch's CPU kernels ran.
bool runs_cpu_kernels(const Capture& capture);
// The preset of a model whose weights are narrower than FP32. Requires: weight_format() names one.
std::string narrow_preset(const Capture& capture);
// Whether autocast is used around the model or inside it.
bool uses_autocast(const Capture& capture);
// The loop trains under autocast to a format with a smaller range than FP32 (FP16), without a
// GradScaler; or it does not train.
bool lacks_scaler(const Capture& capture);
// The lane that does what PyTorch did, except for the order of sums; "" where no lane does (TF32,
// means over several ranks). The lane's policy text has it after kCapturedEqual.
std::string equal_lane(const Capture& capture);
inline constexpr std::string_view kCapturedEqual = "# does the same: ";
std::string describe_captured_data(const Capture& capture);
// A hash of the batches and masks in their order, 16 hexadecimal digits. Values that the model
// derives from a batch do not count: other code may derive others from the same batch.
std::string hash_captured_batches(const Capture& capture);
// kBatchesLine, kMasksLine and the lines of inputs.
ScriptLines lines_of_batches(const Capture& capture);
// Requires: `out` is cleared, `step` is one of the capture's.
void fill_captured_step(const Capture& capture, const LaneContext& context, int64_t step,
                        LaneStep& out);

}  // namespace lockstep
