// Runs an ensemble: one replay as its options say, others from weights moved by one ulp, others
// from other seeds or from other captures of the same loop. Keeps a run's summary, not its file.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "analysis/check/baseline.h"
#include "src/train/observer.h"
#include "src/train/run_options.h"

namespace lockstep {

class RunLock;

struct EnsembleRequest {
  RunOptions options;                 // of the run itself
  int64_t members = 0;                // from moved weights, the run itself not counted
  int64_t seeds = 0;                  // from other seeds
  std::vector<std::string> captures;  // other captures, each of another seed
};

class EnsembleRuns {
 public:
  // `folder`: for run files, made with the first unless it is there, and removed with all in it at
  // the end; one that the caller made is also removed if no run was needed. `watch`:
  // called before each replay with its number and the number of all; may be null.
  EnsembleRuns(std::string folder, const std::atomic<bool>& stop,
               std::function<std::unique_ptr<Observer>(int64_t, int64_t)> watch);
  ~EnsembleRuns();

  // Takes the folder and its lock before the first run. Throws: as path_of.
  void prepare();
  // Makes the folder, or empties it of the runs of a program that was killed. Throws: InputError:
  // another program uses it, it holds other files, or cannot be made.
  std::string path_of(const std::string& name);
  // A run file and its checkpoints.
  static void remove_run(const std::string& path);
  // One run to a file in the folder; its path. Throws: InputError from the replay, WriteError,
  // EnsembleStopped.
  std::string run(RunOptions options, const std::string& name);
  // The baseline of all; nothing is kept in the folder.
  Baseline record(const EnsembleRequest& request);
  // The same around a run that is there already.
  Baseline record_around(const std::string& run_path, const EnsembleRequest& request);
  // The summary of the run itself. Requires: a baseline was recorded.
  const RunSummary& recorded() const { return recorded_; }

 private:
  void remove_left_runs() const;
  RunSummary summary_of(RunOptions options, const std::string& name);

  std::string folder_;
  std::shared_ptr<RunLock> lock_;
  const std::atomic<bool>& stop_;
  std::function<std::unique_ptr<Observer>(int64_t, int64_t)> watch_;
  int64_t started_ = 0, wanted_ = 1;
  RunSummary recorded_;
  bool is_made_ = false,
       is_ours_ = true;  // not ours: another program holds it, or it could not be made
};

// Ctrl-C.
struct EnsembleStopped {};

}  // namespace lockstep
