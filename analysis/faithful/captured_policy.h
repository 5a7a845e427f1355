// The policy of a lane that repeats the captured run.
#pragma once

#include <string>

#include "src/capture/capture.h"
#include "src/policy/policy.h"

namespace lockstep {

// The preset of the run's autocast or narrow weights; the reference lane's where it had neither.
std::string captured_preset(const Capture& capture);
// That preset, with what the run's machine decided.
Policy captured_policy(const Capture& capture);

}  // namespace lockstep
