// What of a program does an engine compute itself?
#pragma once

#include <string>
#include <vector>

namespace lockstep {

// What an engine makes of one program.
struct EngineSurvey {
  std::vector<std::string> fallbacks;  // what the software kernels do in its place, each once
  std::vector<std::string> missing;    // units it would need and this machine lacks
};

}  // namespace lockstep
