// Finds the settings of a policy file that changed. Compares what the files say, not how they are
// written.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// The settings of a lane's policy that only one of the runs has, without its name: by section and
// key, "loss_scale.kind = \"static\"". A rule is one setting with its place among the rules, whose
// order may decide: "rule 2: compute = \"fp32\", layer = \"fc1\"".
struct PolicyChange {
  std::vector<std::string> before, after;
};
// Text that is no TOML is one setting.
PolicyChange policy_change(std::string_view before, std::string_view after);

}  // namespace lockstep
