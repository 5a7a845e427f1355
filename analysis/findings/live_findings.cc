// See live_findings.h.
#include "analysis/findings/live_findings.h"

namespace lockstep {

LiveFindings::LiveFindings(const RunDescription& run) {
  for (const LaneDescription& lane : run.lanes) lanes_.push_back(lane_info(lane));
  const RunView view{.sites = *run.sites, .options = *run.options, .lanes = lanes_};
  for (size_t i = 0; i < lanes_.size(); ++i) {
    tallies_.push_back(std::make_unique<FindingTally>(view, static_cast<int>(i)));
  }
}

void LiveFindings::on_step(const StepRecord& record) {
  if (record.step < next_step_) return;
  next_step_ = record.step + 1;
  for (const auto& tally : tallies_) tally->on_step(record);
}

std::vector<std::vector<ToldFinding>> LiveFindings::findings() const {
  std::vector<std::vector<ToldFinding>> all;
  for (const auto& tally : tallies_) all.push_back(tell_findings(*tally));
  return all;
}

}  // namespace lockstep
