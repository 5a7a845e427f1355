// Who computes a lane?
// The table of engines, and the names of hardware whose arithmetic a lane may ask for. A lane is
// never emulated in disguise: a target this build cannot serve is refused.
#pragma once

#include <span>
#include <string_view>

namespace lockstep {

struct Engine {
  std::string_view name, help;
  bool in_this_build;
};
std::span<const Engine> engines();

// Names behind '@' that mean "the software engine with that hardware's accumulators".
struct HardwareTarget {
  std::string_view name, help;
};
std::span<const HardwareTarget> hardware_targets();

// The engine of a lane's target ("" is software).
// Throws: InputError: a target this build does not serve, or an unknown one (did-you-mean).
const Engine& find_engine(std::string_view target);

}  // namespace lockstep
