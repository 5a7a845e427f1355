// Run files: contents, writing and reading. quantities.h lists what is recorded of a lane,
// docs/run-file.md describes the layout. All objects exist before step 0; each step is written and
// flushed, then `steps_complete` is raised and flushed. A kill at any moment loses no complete
// step.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/core/error.h"
#include "src/record/capture/verification.h"
#include "src/record/run/lane_info.h"
#include "src/record/run/quantities.h"
#include "src/train/lockstep.h"
#include "src/train/observer.h"

namespace lockstep {

inline constexpr int kRunFormatVersion = 3;

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

// A run file or checkpoint whose contents cannot be right, not one that cannot be read.
class DamagedFile : public InputError {
 public:
  using InputError::InputError;
};

// What ties a checkpoint to its run. An empty part fits any.
struct RunIdentity {
  std::string hash;  // of all that decides the run's numbers
  std::string id;    // of this run alone, among equal ones; older files have none
  bool fits(const RunIdentity& other) const;
};

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

// Reads one seed's run up to steps_complete. Datasets are read on demand, whole steps at a time.
class RunFile {
 public:
  // Throws: InputError: not a run file, newer version, damaged, no step (unless `allow_empty`).
  // `seed`: one of the file's seeds, by default its first. Throws: InputError for any other.
  explicit RunFile(const std::string& path, bool allow_empty = false,
                   std::optional<uint64_t> seed = std::nullopt);
  ~RunFile();
  RunFile(RunFile&&) noexcept;

  // The checksum of the description of a run that is being recorded (run_checksum.h). Throws: as
  // the constructor.
  static uint64_t compute_description_checksum(const std::string& path,
                                               std::optional<uint64_t> seed);

  const std::string& path() const;
  int64_t steps() const;  // steps_complete
  // Whether the step has statistics of sites (RunOptions::measuring), and how many steps have.
  bool is_measured(int64_t step) const;
  int64_t measured_steps() const;
  // Whether the step has counts of sites: a measured one has them all, others those of roundings.
  bool has_counts(int64_t step) const;
  // The last measured step up to this one; -1: none.
  int64_t last_measured(int64_t step) const;
  const RunOptions& options() const;  // as the run was started, policy files' texts included
  // Of all runs in the file, in the order in which they were recorded; the last may be unfinished.
  const std::vector<uint64_t>& seeds() const;
  const RunIdentity& identity() const;
  const std::string& command_line() const;
  const std::map<std::string, std::string>& environment() const;
  const std::string& graph_json() const;
  const std::string& data() const;  // RunDescription::data
  // RunDescription::batches_hash; empty in older files, too.
  const std::string& batches_hash() const;
  // The result of `lockstep verify` for the replayed capture: the one next to the capture now, or
  // else the one when the run began. Nothing: never verified, or no capture.
  std::optional<Verification> verification() const;
  // The step's sums of products as JSON (docs/run-file.md); empty for files of version 1.
  const std::string& products_json() const;
  const SiteTable& sites() const;
  const std::vector<LaneInfo>& lanes() const;   // the reference first
  int lane_index(std::string_view name) const;  // Throws: InputError with a did-you-mean

  // A step as training told it (src/record/run/play.h goes through all of them). A lane that has died
  // has sites that were not measured. Not in the file, and left at their defaults: histograms of
  // steps without one, kinds of a device's products (device() has them).
  LaneStep step(int lane, int64_t step, bool histograms = true) const;
  // The same into the memory of another step of the lane, read with the same `histograms`.
  void read_step(int lane, int64_t step, bool histograms, LaneStep& into) const;
  // All steps without their sites.
  std::vector<LaneStep> course(int lane) const;

  std::vector<double> loss(int lane) const;  // [step]; NaN once the lane has died
  // [step] of one column: first LaneInfo::scaler_count() scalers, then the groups that skip on
  // their own. Once the lane has died, their scales are NaN.
  std::vector<ScalerRecord> scalers(int lane, size_t column = 0) const;
  std::vector<Evaluation> evaluations(int lane) const;
  // The work of the lane's device in all complete steps; its kinds of products in the order in which
  // they appeared.
  DeviceWork device(int lane) const;
  std::vector<int64_t> histogram_steps(int lane) const;  // steps with a full histogram
  std::vector<int64_t> sums_steps(int lane) const;       // steps that sampled sums of products
  // Sum over all steps (the 50-step sums joined), [site * 256].
  std::vector<uint64_t> total_histogram(int lane) const;
  // The steps that total_histogram covers: all of them, unless a kill interrupted a block of 50.
  int64_t total_histogram_steps(int lane) const;

  // Of this seed, as docs/run-file.md names them: "lanes/fp32/loss", links escaped.
  std::vector<std::string> dataset_paths() const;
  // Recomputes the checksums of every complete step of this seed's run, which reads all of it. The
  // description's checksum was compared when the file was opened.
  struct Proof {
    int64_t rows = 0;      // compared
    int64_t unsealed = 0;  // kinds of rows without checksums: an older version wrote the file
    std::vector<std::string> problems;  // the first damaged row of every lane and kind
  };
  Proof prove() const;

  // Any quantity of one step, as many numbers as a row has; empty if files of this version lack it,
  // or if the step has no histogram. Requires: a row per step, or kHistograms.
  Numbers numbers_at(int lane, const Quantity& quantity, int64_t step) const;
  // Any narrow quantity over all steps, [step * width]. Evaluations, steps and sums of histograms
  // are as from the functions above; for sums of products, the totals, [site].
  Numbers numbers(int lane, const Quantity& quantity) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Parameters and buffers to start a run from: PATH[:LANE] names a checkpoint (RUN.state) and a lane
// of it, by default the reference. Masters if the lane has them; all in FP32, by name.
// Throws: InputError: no such file, damaged, no such lane (with the list of lanes).
std::map<std::string, Tensor> read_start(std::string_view text);
// Of names, shapes and bits, as 16 hexadecimal digits: RunOptions::start_hash.
std::string start_hash(const std::map<std::string, Tensor>& start);
// The checkpoint's path in PATH[:LANE]. Throws: InputError: no such form.
std::string checkpoint_of_start(std::string_view text);
// Whether `text` names a checkpoint of the run file `run_path`, by any path. A new run to that file
// deletes it. Throws: InputError unless it is PATH[:LANE].
bool starts_from_run(std::string_view text, const std::string& run_path);

// The newest checkpoint of `run_path` that is not past `steps_complete` and is of this run; nothing
// if there is none. Throws: InputError if a checkpoint is damaged.
std::optional<RunState> read_checkpoint(const std::string& run_path, int64_t steps_complete,
                                        const RunIdentity& run = {});

}  // namespace lockstep
