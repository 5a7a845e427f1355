// The vector instructions that a kernel set uses.
#pragma once

#include <cstdint>

namespace lockstep {

enum class SimdTarget : uint8_t { kAvx2, kAvx512 };

}  // namespace lockstep
