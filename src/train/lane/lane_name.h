// Parses lane names of the command line and finds their policy, engine and target.
#pragma once

#include <string>
#include <string_view>

#include "src/core/tensor.h"
#include "src/policy/policy.h"
#include "src/train/run_description.h"

namespace lockstep {

// The parts of a lane's name. "tf32@hopper" -> {"tf32", "hopper"}.
struct LaneName {
  std::string policy, target;
};
LaneName parse_lane_name(std::string_view text);

// The description of a lane by name: its policy, engine and target. `policy_text`: the text of the
// lane's policy file when the run began; without it the file is read.
// Throws: InputError: unknown policy, target not served.
LaneDescription describe_lane(std::string_view name, const std::string* policy_text = nullptr);
inline Container container_of(const LaneDescription& lane) {
  return lane.policy.name == kTruthLane ? Container::kF64 : Container::kF32;
}

}  // namespace lockstep
