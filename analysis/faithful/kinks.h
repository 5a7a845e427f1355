// Does a step choose the same side of every kink as PyTorch?
#pragma once

#include <cstdint>

#include "src/capture/capture.h"
#include "src/execute/executor.h"

namespace lockstep {

// Makes the node choose as PyTorch did where it chose otherwise by rounding
// alone: call before and after every forward node. Returns how many elements it changed.
int64_t force_kinks(const Node& node, const CapturedInside& seen, Executor& executor, bool done);

}  // namespace lockstep
