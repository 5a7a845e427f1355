// The hardware units that can be compared with their software models on the running machine.
#pragma once

#include <vector>

#include "emulation/verify/hardware_unit.h"

namespace lockstep {

// Every group's rows, in the order of the groups.
std::vector<HardwareUnit> hardware_units();

}  // namespace lockstep
