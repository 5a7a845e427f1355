// What do the inputs of a step graph take?
// Tensors by the path of the input, and the masks that nodes take instead of drawing them.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "src/core/tensor.h"

namespace lockstep {

// Named tensors, e.g. "images" (B,C,H,W) kF32 and "labels" (B) kI32; "mask:n12" (kI32) is the mask
// that node n12 takes instead of drawing one.
using Batch = std::map<std::string, Tensor>;
inline constexpr std::string_view kMaskPrefix = "mask:";

}  // namespace lockstep
