// What candidates did when they were run.
// Several candidates are lanes of one replay, which shares data, reference and twin. A replay is
// kept as a run file in a folder, under a name that follows from its options and policies, so that
// the same search, begun again, reads what it has run before.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "analysis/candidates/candidate.h"
#include "analysis/cost/gpu_cost.h"
#include "analysis/findings/equal_weights.h"
#include "analysis/findings/finding.h"
#include "analysis/run/lane_outcomes.h"
#include "analysis/run/outcome.h"
#include "src/train/observer.h"
#include "src/train/run_options.h"

namespace lockstep {

class RunLock;

struct Trial {
  Candidate candidate;
  LaneJudgement judgement;
  std::vector<Finding> findings;  // the gravest first
  EqualStep equal;                // the first step
  int64_t steps = 0, skips = 0;
  int64_t late_skips = 0;     // of the skips, those in the second half of the run
  double reference_loss = 0;  // FP32's own, at the end
  double reference_fall = 0;  // of FP32's loss, from the first step to the end
  MemoryFacts memory;
  StepCost cost;  // an estimate; the search sets it
  // Relative share of the loss's first-order change by each layer's roundings, the largest first.
  std::vector<std::pair<std::string, double>> moved_by;

  bool skips_are_rare() const;
  // FP32 has not learned in these steps: how training ends is not judged. A lane that skipped every
  // step is judged by that.
  bool is_too_short() const { return judgement.verdict == Verdict::kTooShort && skips < steps; }
  // The lane is fine; or FP32 has not learned in these steps (a network that had converged before),
  // and the lane's loss is FP32's within the noise of batches and at equal weights, without a grave
  // finding.
  bool passes() const;
};

// Late in a run, one step in this many may be skipped: a growing scale overflows now and then.
inline constexpr int64_t kStepsPerLateSkip = 20;

// Candidates that share one.
inline constexpr size_t kLanesPerReplay = 4;

// Stopped by Ctrl-C; complete replays are kept.
struct SearchStopped {};

// True once all steps, and the sums over them, are in the file; a file that is damaged or of
// another version is not complete, and is written again.
bool is_complete_run(const std::string& path);
// Makes the folder of a search's runs. Throws: InputError if it cannot, or while another search
// writes it.
std::shared_ptr<RunLock> lock_search_folder(const std::string& folder);

class TrialRuns {
 public:
  // `options`: of every replay, without lanes. `version`: of the program; another runs anew.
  // `watch` makes an observer for a replay; may be null.
  TrialRuns(RunOptions options, std::string folder, std::string version,
            const std::atomic<bool>& stop, std::function<std::unique_ptr<Observer>()> watch);

  // Runs them together with fp32 and its twin. Throws: InputError from the replay, or while another
  // search writes the folder; WriteError, SearchStopped.
  std::vector<Trial> run(std::span<const Candidate> candidates);
  // The same in a run with other options: a rewritten graph, another number of the loop.
  std::vector<Trial> run(std::span<const Candidate> candidates, const RunOptions& options);
  const RunOptions& options() const { return options_; }
  // One candidate and the reference, with another seed or other batches.
  SeedCourses course(const Candidate& candidate, const RunOptions& options);
  // A shorter run of policies that measure something and are not candidates; returns its run file.
  std::string measure(std::span<const Candidate> candidates, LaneMode mode, int64_t steps);
  // The run file of the last run(): its reference lane is the trace.
  const std::string& last_path() const { return last_path_; }

  int64_t replays() const { return replays_; }        // run() calls so far
  int64_t lanes() const { return lanes_; }            // candidates in them
  int64_t measured() const { return measured_; }      // lanes of measure()
  int64_t read_again() const { return read_again_; }  // replays found in the folder

 private:
  void replay(std::span<const Candidate> candidates, RunOptions options);

  RunOptions options_;
  std::string folder_, version_, last_path_;
  std::shared_ptr<RunLock> lock_;  // of the folder; null: every run so far was read
  const std::atomic<bool>& stop_;
  std::function<std::unique_ptr<Observer>()> watch_;
  int64_t replays_ = 0, lanes_ = 0, measured_ = 0, read_again_ = 0;
};

}  // namespace lockstep
