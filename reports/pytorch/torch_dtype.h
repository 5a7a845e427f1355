// Formats in torch's words.
#pragma once

#include <string>

#include "emulation/format/format.h"

namespace lockstep {

// "torch.float16", "torch.bfloat16", "torch.float32". Requires: a format that torch has.
std::string torch_dtype(const Format& format);
std::string torch_dtype(const std::string& format);

}  // namespace lockstep
