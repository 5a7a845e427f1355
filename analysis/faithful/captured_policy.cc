// See captured_policy.h.
#include "analysis/faithful/captured_policy.h"

#include "src/policy/find_policy.h"
#include "src/train/lane/captured_lane.h"
#include "src/train/lane/lane_name.h"

namespace lockstep {

std::string captured_preset(const Capture& capture) {
  if (uses_autocast(capture)) return autocast_preset(capture);
  return weight_format(capture).empty() ? std::string(kReferenceLane) : narrow_preset(capture);
}

Policy captured_policy(const Capture& capture) {
  Policy policy = find_policy(captured_preset(capture));
  policy.formats_as_captured = !weight_format(capture).empty();
  policy.weight_cache = capture.amp.cache_enabled;
  policy.cpu_threads = static_cast<int>(capture.amp.threads);
  return policy;
}

}  // namespace lockstep
