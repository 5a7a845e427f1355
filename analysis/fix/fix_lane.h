// A lane to be fixed, as a policy file that behaves as the lane does.
#pragma once

#include <string>

#include "src/capture/capture.h"
#include "src/train/run_options.h"

namespace lockstep {

struct FixLane {
  std::string name;    // "half", "mine.toml", "half@hopper"
  std::string toml;    // a preset's extends it
  std::string target;  // after '@', or ""
};

// The text comes from options.policy_texts, a file or a preset. A preset takes the loss scaler of a
// captured loop, or has none where the loop has none; a file keeps its own. So the text names the
// scaler. `capture`: null for a built-in model. Throws: InputError: no such policy; a lane that
// cannot be fixed (fp32, fp64, twin).
FixLane fix_lane(const std::string& name, const RunOptions& options, const Capture* capture);

}  // namespace lockstep
