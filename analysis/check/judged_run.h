// A run and its baseline as every part of the judge reads them: both as data, matched, with the
// lines of their scripts. Knows nothing of limits.
#pragma once

#include <cstddef>
#include <vector>

#include "analysis/check/baseline.h"
#include "analysis/check/change_lines.h"
#include "analysis/check/run_summary.h"
#include "analysis/check/script_places.h"
#include "analysis/check/shared_places.h"
#include "analysis/pair/run_match.h"
#include "src/record/run/run_reader.h"

namespace lockstep {

struct JudgedRun {
  // Both must outlive this.
  JudgedRun(const RunFile& run, const Baseline& recorded);

  // What the run has of a lane of the baseline. Requires: it has that lane.
  const LaneSummary& lane_now(size_t lane) const {
    return summary.lanes[static_cast<size_t>(lane_here[lane])];
  }
  // Of the baseline; its number of lanes: none that the run has.
  size_t reference_lane() const;
  bool is_captured() const { return !facts.batches_hash.empty(); }

  const RunFile& file;
  const Baseline& baseline;
  const RunSummary summary;
  const RunFacts facts;  // without twins
  const RunMatch match;  // before: the baseline
  const ChangeLines lines;
  const SharedPlaces places;
  const ScriptPlaces script;
  std::vector<int> lane_here;    // by lane of the baseline: the lane in `facts`, -1: none
  std::vector<int> lane_in_run;  // by lane of `facts`: the lane in the file
};

}  // namespace lockstep
