// The operations of a program that an engine computes itself.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace lockstep {

// The survey of one program by an engine.
struct EngineSurvey {
  std::vector<std::string> fallbacks;  // what the software kernels run instead, each once
  std::vector<std::string> missing;    // units that it needs and this machine lacks
  // The sums that an engine's device forms, by node: "hopper_fp16 fp16 x fp16".
  std::map<int, std::string> device_sums = {};
};

}  // namespace lockstep
