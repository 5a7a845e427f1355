// What the pictures of one lane show: everything that charts need beyond the tables.
#pragma once

#include <optional>
#include <vector>

#include "analysis/findings/finding.h"
#include "analysis/report/error_growth.h"
#include "analysis/report/exponents.h"
#include "analysis/report/fault_chain.h"
#include "analysis/report/step_map.h"
#include "src/record/run/run_file.h"

namespace lockstep {

struct LaneViews {
  StepMap map;                           // of the steps before the loss is not finite, and that one
  std::vector<SiteExponents> exponents;  // by site
  int64_t exponent_steps = 0;            // over so many steps
  std::optional<ErrorGrowth> growth;
  std::vector<FaultChain> chains;  // of the first findings, in their order
};

// The most findings of a lane whose chains are shown.
inline constexpr size_t kMostChains = 3;

// `end`: the map's cells are of the steps before it. Cost: reads every step's counts once, and the
// histograms.
LaneViews read_lane_views(const RunFile& run, int lane, const std::vector<Finding>& findings,
                          int64_t end);

}  // namespace lockstep
