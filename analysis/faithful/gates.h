// Is a capture replayed faithfully?
// The gates V0, V1 and V3 to V7 (V2, op by op, is a unit test): each compares what Lockstep
// computes from a captured state with what PyTorch recorded, and has a figure and a bound. A
// recommendation is worth no more than this. Knows nothing of files.
#pragma once

#include <functional>
#include <vector>

#include "analysis/faithful/gate_result.h"
#include "src/capture/capture.h"

namespace lockstep {

// One gate after the other; `done` is called with each as soon as it is known.
std::vector<GateResult> verify_capture(const Capture& capture,
                                       const std::function<void(const GateResult&)>& done = {});

// No gate failed, and at least V1 could be judged.
bool all_passed(const std::vector<GateResult>& gates);
bool any_failed(const std::vector<GateResult>& gates);

}  // namespace lockstep
