#include "src/record/run/lane_info.h"

#include <fmt/format.h>

#include "src/policy/find_policy.h"
#include "src/record/run/run_file_names.h"
#include "src/train/lane/lane_name.h"
#include "src/train/run_description.h"

namespace lockstep {

DeathCause read_death_cause(const StoredFields& lane) {
  constexpr auto kLast = static_cast<int64_t>(DeathCause::kLossScaler);
  const int64_t cause = lane.integer(run_names::kDiedOf, 0, /*required=*/false);
  if (cause >= 0 && cause <= kLast) return static_cast<DeathCause>(cause);
  lane.problem(fmt::format("died_of is {}, must be 0 to {}", cause, kLast));
  return DeathCause::kAlive;
}

LaneInfo lane_info(const LaneDescription& lane) {
  LaneInfo info;
  info.name = lane.name;
  info.engine = lane.engine;
  info.target = lane.target;
  info.policy_text = lane.policy.text;
  info.policy_hash = run_names::hex(lane.policy.hash());
  info.fallbacks = lane.fallbacks;
  info.is_reference = lane.is_reference;
  info.is_of_larger_model = lane.policy.is_of_larger_model;
  info.scaler_losses = lane.scaler_losses;
  info.warnings = lane.warnings;
  info.site_formats = lane.site_formats;
  info.device_sums = lane.device_sums;
  if (lane.memory != MemoryFacts{}) info.memory = lane.memory;
  return info;
}

Policy policy_of(const LaneInfo& lane) {
  Policy policy = parse_recorded_policy(lane.policy_text, parse_lane_name(lane.name).policy);
  policy.is_of_larger_model = lane.is_of_larger_model;
  return policy;
}

}  // namespace lockstep
