// Who computes a lane?
// The table of engines. A lane is
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

// The engine of a lane's target: "" is software, and so is the name of hardware whose accumulators
// the lane uses (emulation/accumulator.h).
// Throws: InputError: a target this build does not serve, or an unknown one (did-you-mean).
const Engine& find_engine(std::string_view target);

}  // namespace lockstep
