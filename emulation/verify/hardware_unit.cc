// The groups of units, joined.
#include "emulation/verify/hardware_unit.h"

namespace lockstep {

std::vector<HardwareUnit> hardware_units() {
  std::vector<HardwareUnit> units;
  for (const auto group : {cpu_hardware_units(), nvidia_hardware_units()}) {
    units.insert(units.end(), group.begin(), group.end());
  }
  return units;
}

}  // namespace lockstep
