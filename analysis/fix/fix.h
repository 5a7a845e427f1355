// Finds a remedy that removes a finding.
// Runs a lane that goes wrong, takes its gravest finding, and runs the finding's remedies
// (analysis/findings/remedies.h) as edits, the smallest first. A remedy is accepted if
//   - no finding of that kind at that layer is left, none has come elsewhere, none is left that
//     breaks a training, and the loss is not wrong at equal weights (equal_weights.h),
//   - the loss is within the tolerance of FP32's: a share of the fall of FP32's loss, never below
//     what one ulp does (proof.h); or within the noise of the run (outcome.h).
// The loss at the end says little where training amplifies rounding, or where FP32 does not learn:
// a remedy whose loss differs from FP32's by more than that share is run again in synced mode, and
// is accepted only if no step's loss is wrong at equal weights, nor all steps' gradients.
// Of remedies that are accepted, one whose gap at equal weights is less than half of the others' is
// preferred: a smaller edit always, a wider one for a lane whose loss was wrong there.
// If a remedy removes the finding and another finding remains, the next round continues with that
// one. Steps of a chain that are no longer needed are removed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "analysis/findings/remedy.h"
#include "analysis/fix/fix_lane.h"
#include "analysis/search/search_budget.h"
#include "analysis/search/trial_runs.h"

namespace lockstep {

// The graph of a run and its sites. Rewrites change them.
struct FixScene {
  SiteTable sites;
  Graph step;
};

// How well a trial answers.
enum class FixGrade : uint8_t {
  kNo,
  kNoise,      // the fault is gone; the loss is FP32's within the noise of this run
  kTolerance,  // the same, within the tolerance
};

struct FixTrial {
  std::vector<RemedyEdit> edits;  // all of them, those of earlier rounds first
  std::string refused;            // why it could not be run; "": it ran
  Trial trial;
  int round = 0;
  bool gone = false;  // the finding of its round
  FixGrade grade = FixGrade::kNo;
  EqualStep every_step;  // the worst of all steps at equal weights; step -1: was not run
  std::shared_ptr<const FixScene> scene;
};

struct FixRound {
  Finding target;
  std::string sentence, layer;        // of the finding
  std::vector<std::string> untested;  // its remedies that are no edit
};

struct Fix {
  enum class Answer : uint8_t {
    kFixed,
    kNothingWrong,  // no finding, and the loss is FP32's
    kNoFinding,     // the loss is not FP32's, and no finding says why
    kNothingHelped,
    kFp32Broke,
  };
  Answer answer = Answer::kNothingHelped;
  Trial before;
  std::string before_sentence;  // of its gravest finding, ""
  std::vector<FixRound> rounds;
  std::vector<FixTrial> tried;  // in this order
  int chosen = -1;              // of `tried`
  bool out_of_budget = false;

  const FixTrial& fix() const { return tried[static_cast<size_t>(chosen)]; }
};

// The tolerance on a trial's gap, in units of the loss.
double tolerance_of(const Trial& trial);
// kNo for a loss or gradients that are wrong at equal weights, whatever became of the training.
FixGrade grade_of_loss(const Trial& trial);

// Whether the loss at the end differs from FP32's, above or below, by more than the share of FP32's
// fall: then equal weights decide.
bool is_judged_at_every_step(const Trial& trial);
// Whether the gradients are wrong by half or more in every step at equal weights, and the loss ends
// above FP32's by kLeastShare or more: near a minimum, where gradients are small, noise alone does
// the first.
bool has_wrong_gradients(const Trial& trial, const EqualStep& worst);
// Whether the steps at equal weights refute a trial: gradients are wrong, or a loss is not finite,
// or wrong by more than the share of FP32's fall.
bool is_refuted(const Trial& trial, const EqualStep& worst);

// Throws: as TrialRuns::run; InputError if the lane itself cannot be run.
Fix find_fix(TrialRuns& runs, const FixLane& lane, const SearchBudget& budget);

}  // namespace lockstep
