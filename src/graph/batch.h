// The data for one run of a step graph: tensors by the path of the input, and masks that nodes use
// instead of drawing their own.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "src/core/tensor.h"

namespace lockstep {

// Named tensors, e.g. "images" (B,C,H,W) kF32 and "labels" (B) kI32; "mask:n12" (kI32) is the mask
// that node n12 uses instead of drawing one.
using Batch = std::map<std::string, Tensor>;
inline constexpr std::string_view kMaskPrefix = "mask:";

}  // namespace lockstep
