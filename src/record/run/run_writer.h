// Writes run files. quantities.h lists what is recorded of a lane, docs/run-file.md describes the
// layout. All objects exist before step 0; each step is written and flushed, then `steps_complete`
// is raised and flushed. A kill at any moment loses no complete step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "src/train/observer.h"

namespace lockstep {

// What went wrong so far, for the snapshot: by lane, the gravest first. Nothing here decides what a
// finding is; analysis/findings does.
struct SnapshotFinding {
  std::string kind, sentence;
  int64_t first_step = 0;
};
using FindingsSoFar = std::function<std::vector<std::vector<SnapshotFinding>>()>;

// An Observer that writes the run file and, next to it, the checkpoints `PATH.state` (newest) and
// `PATH.state.1` (the previous one).
class RunFileWriter : public Observer {
 public:
  // Creates `path`. Throws: InputError if it exists and `overwrite` is false, or cannot be made.
  RunFileWriter(std::string path, std::string command_line, bool overwrite);
  // Opens an existing run file to continue after `resume_from` steps. Steps already recorded are
  // checked (their bits_hash must equal the recomputed one: InputError with step, lane and site),
  // later ones are written. `seed`: as for RunFile.
  static std::unique_ptr<RunFileWriter> resume(std::string path, int64_t resume_from,
                                               std::optional<uint64_t> seed = std::nullopt);
  // Opens an existing run file to record the same lanes from another seed, as a whole run in the
  // group /seeds/SEED. Throws: InputError if the file holds that seed.
  static std::unique_ptr<RunFileWriter> add_seed(std::string path, uint64_t seed);
  ~RunFileWriter() override;
  // Before on_start(). Called after steps, at most twice a second, and at the end; if it throws,
  // the snapshot says why it has no findings.
  void show_findings(FindingsSoFar findings);

  void on_start(const RunDescription&) override;
  void on_step(const StepRecord&) override;
  void on_evaluation(const EvaluationRecord&) override;
  void on_checkpoint(const RunStateView&) override;
  void on_finish() override;

 private:
  struct Impl;
  RunFileWriter();
  std::unique_ptr<Impl> impl_;
};

// The endings of the files that a replay writes next to RUN.
inline constexpr std::string_view kNextToRun[] = {
    ".state", ".state.1", ".tmp", ".state.tmp", ".progress.json", ".progress.json.tmp", ".lock"};

// A failed write (disk full). The file keeps its last flushed state and stays readable.
class WriteError : public std::runtime_error {
 public:
  // `error`: the errno, 0 if HDF5 gave none. `has_steps`: the run file has complete steps.
  WriteError(const std::string& what, int error, bool has_steps)
      : std::runtime_error(what), error_(error), has_steps_(has_steps) {}
  int error() const { return error_; }
  bool has_steps() const { return has_steps_; }

 private:
  int error_;
  bool has_steps_;
};

}  // namespace lockstep
