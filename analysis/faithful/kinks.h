// Makes a step take the same side of every kink as PyTorch did.
#pragma once

#include <cstdint>

#include "src/capture/capture.h"
#include "src/execute/value_store.h"

namespace lockstep {

// Changes the node's choices that differ from PyTorch's by rounding alone. Call before and after
// every forward node. Returns the number of elements changed.
int64_t force_kinks(const Node& node, const CapturedInside& seen, ValueStore& values, bool done);

}  // namespace lockstep
