// The gates one by one, in the files gates_*.cc.
#pragma once

#include "analysis/faithful/gate_result.h"
#include "src/capture/capture.h"

namespace lockstep {

GateResult gate_v1(const Capture& capture);
// Also fills V4, which compares the buffers of the same steps.
GateResult gate_v3(const Capture& capture, GateResult& v4);
GateResult gate_v5(const Capture& capture);
GateResult gate_v6(const Capture& capture);
GateResult gate_v7(const Capture& capture);
// Requires: a part's capture.
GateResult gate_v8(const Capture& capture);

}  // namespace lockstep
