// The findings of a run in progress, for its live view. An observer like those that a finished run
// is played to: the same tallies give the same sentences.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "analysis/findings/findings.h"

namespace lockstep {

class LiveFindings : public Observer {
 public:
  // What `run` refers to must outlive the object. `recall` plays the steps that a resumed run has;
  // on_start() calls it.
  explicit LiveFindings(const RunDescription& run, std::function<void(Observer&)> recall = nullptr);
  // These throw nothing: a run does not end because its view fails.
  void on_start(const RunDescription& run) override;
  // A step that was seen before is passed by: a resumed run computes some steps again.
  void on_step(const StepRecord& record) override;
  // Of the steps so far, by lane, the gravest first. Throws: std::runtime_error if a step failed.
  std::vector<std::vector<ToldFinding>> findings() const;

 private:
  void add(const StepRecord& record);

  std::function<void(Observer&)> recall_;
  std::string failure_;  // what() of the first failure; no tally takes another step
  std::vector<LaneInfo> lanes_;
  std::vector<std::unique_ptr<FindingTally>> tallies_;  // by lane
  int64_t next_step_ = 0;
};

}  // namespace lockstep
