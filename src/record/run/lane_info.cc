#include "src/record/run/lane_info.h"

#include <fmt/format.h>

#include "src/record/run/run_file_names.h"

namespace lockstep {

DeathCause read_death_cause(const StoredFields& lane) {
  constexpr auto kLast = static_cast<int64_t>(DeathCause::kLossScaler);
  const int64_t cause = lane.integer(run_names::kDiedOf, 0, /*required=*/false);
  if (cause >= 0 && cause <= kLast) return static_cast<DeathCause>(cause);
  lane.problem(fmt::format("died_of is {}, must be 0 to {}", cause, kLast));
  return DeathCause::kAlive;
}

}  // namespace lockstep
