// The groups of units, joined.
#include "emulation/verify/hardware_units.h"

#include "emulation/verify/cpu_units.h"
#include "emulation/verify/nvidia/nvidia_units.h"

namespace lockstep {

std::vector<HardwareUnit> hardware_units() {
  std::vector<HardwareUnit> units;
  for (const auto group : {cpu_hardware_units(), nvidia_hardware_units()}) {
    units.insert(units.end(), group.begin(), group.end());
  }
  return units;
}

}  // namespace lockstep
