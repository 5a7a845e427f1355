// The sums of products of a lane in one row: how far they are from exact sums, and the share of the
// products too small to change the sum they are added to (swamping).
#pragma once

#include <cstdint>
#include <optional>

#include "analysis/report/report.h"

namespace lockstep {

struct LaneSums {
  uint64_t compared = 0;    // sums that were formed again exactly
  double error = 0;         // root mean square over the ops of the error relative to the exact sums
  double worst_error = 0;   // of an op
  double swamped = 0;       // share of all products
  double most_swamped = 0;  // of the products of an op
  size_t most_swamped_site = 0;
};
// Nothing: no sum was sampled.
std::optional<LaneSums> lane_sums(const LaneReport& lane);

}  // namespace lockstep
