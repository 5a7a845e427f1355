// The findings of a run in progress, for its live view. An observer like those that a finished run
// is played to: the same tallies give the same sentences.
#pragma once

#include <memory>
#include <vector>

#include "analysis/findings/findings.h"

namespace lockstep {

class LiveFindings : public Observer {
 public:
  // What `run` refers to must outlive the object.
  explicit LiveFindings(const RunDescription& run);
  // A step that was seen before is passed by: a resumed run computes some steps again.
  void on_step(const StepRecord& record) override;
  // Of the steps so far, by lane, the gravest first.
  std::vector<std::vector<ToldFinding>> findings() const;

 private:
  std::vector<LaneInfo> lanes_;
  std::vector<std::unique_ptr<FindingTally>> tallies_;  // by lane
  int64_t next_step_ = 0;
};

}  // namespace lockstep
