// Is a capture replayed faithfully?
// The gates V0, V1 and V3 to V7 (V2, op by op, is a unit test): each compares what Lockstep
// computes from a captured state with what PyTorch recorded, and has a figure and a bound. A
// recommendation is worth no more than this. Knows nothing of files.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "src/train/captured/capture.h"

namespace lockstep {

enum class GateStatus : uint8_t {
  kPass,
  kFail,
  kNotApplicable,  // the run had no scaler, no autocast, ...
  kNotRecorded,    // the capture lacks what it would be compared with
};
std::string_view to_string(GateStatus status);  // "PASS", "FAIL", "n/a", "not recorded"

struct GateResult {
  std::string name;     // "V1"
  std::string subject;  // "FP64 replay against PyTorch's FP64"
  GateStatus status = GateStatus::kNotRecorded;
  std::string figure;                // what was found, with its bound
  std::vector<std::string> details;  // where it failed
};

// One gate after the other; `done` is called with each as soon as it is known.
std::vector<GateResult> verify_capture(const Capture& capture,
                                       const std::function<void(const GateResult&)>& done = {});

// No gate failed, and at least V1 could be judged.
bool all_passed(const std::vector<GateResult>& gates);
bool any_failed(const std::vector<GateResult>& gates);

// The bounds, from the tables of docs/pytorch.md.
struct GateBounds {
  double loss = 0;            // relative
  double rtol = 0, atol = 0;  // of gradients: |g - ref| <= rtol |ref| + atol max_q |ref_q|
};
inline constexpr GateBounds kBoundsV1{1e-12, 1e-9, 1e-12};
inline constexpr GateBounds kBoundsV3{1e-6, 1e-5, 1e-6};
// Where FP32 itself does not determine the loss so well (huge logits that cancel), V3 allows this
// many times what it differs from PyTorch's FP64 loss, in Lockstep or in PyTorch, whichever differs
// less: a wrong loss on one side alone does not raise its own bound.
inline constexpr double kLossNoiseFactor = 3;
inline constexpr double kBoundAct = 1e-5;     // the L2 norm of a node's output, to find the first
inline constexpr double kBoundBuffer = 1e-5;  // buffers, V4
inline constexpr double kBoundWeight = 2e-6, kBoundWeightAbsolute = 1e-7;  // V5
inline constexpr double kBoundState = 1e-6;

}  // namespace lockstep
