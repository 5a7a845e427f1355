#include "src/record/run/lane_info.h"

#include <fmt/format.h>

#include "src/policy/find_policy.h"
#include "src/record/run/run_file_names.h"
#include "src/train/lane/lane_name.h"

namespace lockstep {

DeathCause read_death_cause(const StoredFields& lane) {
  constexpr auto kLast = static_cast<int64_t>(DeathCause::kLossScaler);
  const int64_t cause = lane.integer(run_names::kDiedOf, 0, /*required=*/false);
  if (cause >= 0 && cause <= kLast) return static_cast<DeathCause>(cause);
  lane.problem(fmt::format("died_of is {}, must be 0 to {}", cause, kLast));
  return DeathCause::kAlive;
}

Policy policy_of(const LaneInfo& lane) {
  return parse_recorded_policy(lane.policy_text, parse_lane_name(lane.name).policy);
}

}  // namespace lockstep
