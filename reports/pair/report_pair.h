// Two reports next to each other, before and after a fix, and what changed (analysis/compare).
#pragma once

#include <string>

#include "analysis/pair/run_changes.h"
#include "analysis/report/report.h"

namespace lockstep {

struct ReportPair {
  Report before, after;
  std::string before_name, after_name;  // of the runs in sentences: "before.h5"
  RunComparison changes;

  // Requires: the lane is in that run.
  const LaneReport& lane_before(const LaneComparison& lanes) const {
    return before.lanes[static_cast<size_t>(lanes.lanes.before)];
  }
  const LaneReport& lane_after(const LaneComparison& lanes) const {
    return after.lanes[static_cast<size_t>(lanes.lanes.after)];
  }
  const std::string& lane_name(const LaneComparison& lanes) const {
    return (lanes.lanes.after >= 0 ? lane_after(lanes) : lane_before(lanes)).info.name;
  }
};
ReportPair compare_reports(Report before, Report after);

// "pure-fp16 broke at step 40 in a.h5; in b.h5 it trains as fp32 does."
std::string change_sentence(const ReportPair& pair, const LaneComparison& lanes);
// Not of noise, references and what PyTorch recorded.
bool is_shown(const ReportPair& pair, const LaneComparison& lanes);

}  // namespace lockstep
