// Two reports next to each other, before and after a fix, and what changed (analysis/pair).
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

}  // namespace lockstep
