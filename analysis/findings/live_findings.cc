// See live_findings.h.
#include "analysis/findings/live_findings.h"

#include <exception>
#include <stdexcept>
#include <utility>

namespace lockstep {

LiveFindings::LiveFindings(const RunDescription& run, std::function<void(Observer&)> recall)
    : recall_(std::move(recall)) {
  for (const LaneDescription& lane : run.lanes) lanes_.push_back(lane_info(lane));
  const RunView view{.sites = *run.sites, .options = *run.options, .lanes = lanes_};
  for (size_t i = 0; i < lanes_.size(); ++i) {
    tallies_.push_back(std::make_unique<FindingTally>(view, static_cast<int>(i)));
  }
}

void LiveFindings::on_start(const RunDescription&) {
  try {
    if (recall_) recall_(*this);
  } catch (const std::exception& error) {
    failure_ = error.what();
  }
}

void LiveFindings::on_step(const StepRecord& record) {
  if (record.step < next_step_ || !failure_.empty()) return;
  next_step_ = record.step + 1;
  try {
    add(record);
  } catch (const std::exception& error) {
    failure_ = error.what();
  }
}

void LiveFindings::add(const StepRecord& record) {
  for (size_t i = 0; i < lanes_.size(); ++i) {
    if (record.lanes[i].alive || lanes_[i].died_at >= 0) continue;
    lanes_[i].died_at = record.step;
    lanes_[i].died_of = record.lanes[i].died_of;
  }
  for (const auto& tally : tallies_) tally->on_step(record);
}

std::vector<std::vector<ToldFinding>> LiveFindings::findings() const {
  if (!failure_.empty()) throw std::runtime_error(failure_);
  std::vector<std::vector<ToldFinding>> all;
  for (const auto& tally : tallies_) all.push_back(tell_findings(*tally));
  return all;
}

}  // namespace lockstep
