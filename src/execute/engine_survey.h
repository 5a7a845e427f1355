// Which operations of a program does an engine compute itself?
#pragma once

#include <string>
#include <vector>

namespace lockstep {

// The survey of one program by an engine.
struct EngineSurvey {
  std::vector<std::string> fallbacks;  // what the software kernels run instead, each once
  std::vector<std::string> missing;    // units that it needs and this machine lacks
};

}  // namespace lockstep
