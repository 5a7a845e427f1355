// The rows of NVIDIA GPUs in the table of hardware units.
#pragma once

#include <span>

#include "emulation/verify/hardware_unit.h"

namespace lockstep {

std::span<const HardwareUnit> nvidia_hardware_units();

}  // namespace lockstep
