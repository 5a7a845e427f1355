// The rows of CPUs in the table of hardware units.
#pragma once

#include <span>

#include "emulation/verify/hardware_unit.h"

namespace lockstep {

std::span<const HardwareUnit> cpu_hardware_units();

}  // namespace lockstep
