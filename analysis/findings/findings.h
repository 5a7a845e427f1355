// Finds what went wrong in each lane of a run.
// Decides what broke; the report, the check and the search of `recommend` read it.
// finding.h says what a finding is, finding_kinds.h what each kind means.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "analysis/findings/equal_weights.h"
#include "analysis/findings/finding_context.h"
#include "analysis/run/run_view.h"
#include "src/record/run/run_reader.h"
#include "src/train/observer.h"

namespace lockstep {

// Not the reference, the truth, the twin or PyTorch's own recorded run: a lane that is judged.
bool is_candidate(const LaneInfo& lane);

// Gathers what the findings of one lane rest on, from the records of a run that is
// played back.
// Needs the records of the lane, of the reference and of the first twin, if there is one.
class FindingTally : public Observer {
 public:
  // What `run` refers to must outlive the object.
  FindingTally(const RunView& run, int lane);
  ~FindingTally() override;
  void on_step(const StepRecord& record) override;
  // The findings of the steps so far, the gravest first. Only candidates have findings, and the
  // reference where its own loss is not finite: the origins.
  std::vector<Finding> findings() const;
  // How the lane compares in a step that it began with the reference's weights.
  EqualStep equal_step() const;
  // What the sentence of one of them refers to. Valid as long as the finding and the run.
  FindingContext context_of(const Finding& finding) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;  // null: no candidate
};

// The lanes whose records a lane's findings need.
std::vector<int> lanes_for_findings(const RunView& run, int lane);

// A finding and its sentence (FindingKindRow::sentence).
struct ToldFinding {
  Finding finding;
  std::string sentence;
};
std::vector<ToldFinding> tell_findings(const FindingTally& tally);

// The findings of one lane. Cost: reads every step of the lane, the reference and a twin.
std::vector<ToldFinding> find_findings(const RunFile& run, int lane);

}  // namespace lockstep
