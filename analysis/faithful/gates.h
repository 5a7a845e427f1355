// Checks that a capture is replayed faithfully.
// The gates V0, V1 and V3 to V7, of parts V8 too (V2, op by op, is a unit test): each compares what
// Lockstep computes from a captured state with what PyTorch recorded, and has a figure and a bound.
// A recommendation is only as good as this check. Knows nothing of files.
#pragma once

#include <functional>
#include <vector>

#include "analysis/faithful/gate_result.h"
#include "src/capture/capture.h"

namespace lockstep {

// Runs the gates; calls `done` with each result, in order. A tensor leaves memory after the last
// gate that reads it. Throws: InputError where too little memory is free for the FP64 step.
std::vector<GateResult> verify_capture(Capture capture,
                                       const std::function<void(const GateResult&)>& done = {});

// No gate failed, and at least V1 could be judged.
bool all_passed(const std::vector<GateResult>& gates);
bool any_failed(const std::vector<GateResult>& gates);

}  // namespace lockstep
