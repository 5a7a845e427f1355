// See judged_run.h.
#include "analysis/check/judged_run.h"

namespace lockstep {

JudgedRun::JudgedRun(const RunFile& run, const Baseline& recorded)
    : file(run),
      baseline(recorded),
      summary(summarize(run)),
      facts(facts_without_twins(run)),
      match(match_runs(recorded.run, facts)),
      lines(change_lines(recorded.run, facts, match)),
      places(shared_places(recorded.run, facts, match)),
      script(recorded.run, facts),
      lane_here(recorded.run.lanes.size(), -1) {
  for (const LaneFacts& lane : facts.lanes) lane_in_run.push_back(run.lane_index(lane.name));
  for (const LanePair& pair : match.lanes) {
    if (pair.is_same_lane()) lane_here[static_cast<size_t>(pair.before)] = pair.after;
  }
}

size_t JudgedRun::reference_lane() const {
  for (size_t lane = 0; lane < lane_here.size(); ++lane) {
    if (lane_here[lane] >= 0 && lane_now(lane).is_reference) return lane;
  }
  return lane_here.size();
}

}  // namespace lockstep
