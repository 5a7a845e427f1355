// What the pictures of one lane show: everything that charts need beyond the tables.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "analysis/findings/finding.h"
#include "analysis/report/error_growth.h"
#include "analysis/report/exponents.h"
#include "analysis/report/fault_chain.h"
#include "analysis/report/step_map.h"
#include "src/record/run/run_reader.h"

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

// The views of a lane of a file that is played back. What is not finite comes from the caller, who
// shares it with other tallies.
class LaneViewTally {
 public:
  // `run` must outlive the object.
  LaneViewTally(const RunFile& run, int lane);
  // `nonfinite`: without what is intended; empty: the step has no cells, the loss was lost before.
  void add(const StepRecord& record, std::span<const NonfiniteCounts> nonfinite);
  // Cost: reads the histograms, and the first steps of some findings.
  LaneViews views(const std::vector<Finding>& findings) const;

 private:
  const RunFile& run_;
  int lane_;
  ExponentTally exponents_;
  StepMapTally map_;
  ErrorGrowthTally growth_;
};

}  // namespace lockstep
