// Is a capture replayed faithfully?
// The gates V0, V1 and V3 to V7 (V2, op by op, is a unit test): each compares what Lockstep
// computes from a captured state with what PyTorch recorded, and has a figure and a bound. A
// recommendation is worth no more than this. Knows nothing of files.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "src/capture/capture.h"

namespace lockstep {

enum class GateStatus : uint8_t {
  kPass,
  kFail,
  kNotApplicable,  // the run had no scaler, no autocast, ...
  kNotRecorded,    // the capture lacks what it would be compared with
};
std::string_view to_string(GateStatus status);  // "PASS", "FAIL", "n/a", "not recorded"

// How much of a gate's judgement rested on a floor: on an absolute bound that is larger than the
// relative one, or on what FP32 does not determine. Counted per tensor (a gradient, a weight) and
// verify step; V7 judges means over the steps.
struct FloorShare {
  int64_t tensors = 0;   // judged
  int64_t by_floor = 0;  // of these: the absolute part of the bound is the larger part
  int64_t by_chaos = 0;  // of these: the bound is what one ulp of the weights changes
  int64_t elements = 0;  // of these tensors
  int64_t noise = 0;     // of these elements: left out, see `noise` in docs/capture-file.md

  void add(const FloorShare& other);
  std::string text() const;  // "3 of 18 by the absolute floor, ..."; "" where there is none
};

struct GateResult {
  std::string name = {};     // "V1"
  std::string subject = {};  // "FP64 replay against PyTorch's FP64"
  GateStatus status = GateStatus::kNotRecorded;
  std::string figure = {};                // what was found, with its bound
  std::vector<std::string> details = {};  // where it failed
  FloorShare floor = {};
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
// Where FP32 itself does not determine a gradient so well (a small difference of large numbers, as
// behind a normalisation over two elements), V3 allows this many times the most that one ulp of the
// weights changes in it, of so many draws of signs, with PyTorch's choices at kinks. A draw is one
// rounding per weight; what PyTorch rounds on top of it, its input gradient of group_norm does not
// centre x, was up to 3.3 times that in 80 small captures.
inline constexpr double kChaosFactorV3 = 4;
inline constexpr uint64_t kChaosTwins = 8;
inline constexpr double kBoundAct = 1e-5;     // the L2 norm of a node's output, to find the first
inline constexpr double kBoundBuffer = 1e-5;  // buffers, V4
inline constexpr double kBoundWeight = 2e-6, kBoundWeightAbsolute = 1e-7;  // V5
inline constexpr double kBoundState = 1e-6;

}  // namespace lockstep
