// What does a run file hold, and how is it written so that a kill at any moment loses nothing?
// What is recorded of a lane: quantities.h. Layout: docs/run-file.md. All objects exist
// before step 0; each step is written, flushed, then `steps_complete` is raised and flushed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/record/capture/verification.h"
#include "src/record/run/lane_info.h"
#include "src/record/run/quantities.h"
#include "src/train/lockstep.h"
#include "src/train/observer.h"

namespace lockstep {

inline constexpr int kRunFormatVersion = 3;

// An Observer that writes the run file and, beside it, the checkpoints `PATH.state` (newest) and
// `PATH.state.1` (the one before).
class RunFileWriter : public Observer {
 public:
  // Creates `path`. Throws: InputError when it exists and `overwrite` is false, or cannot be made.
  RunFileWriter(std::string path, std::string command_line, bool overwrite);
  // Opens an existing run file to go on after `resume_from` steps: steps already recorded are
  // checked (their bits_hash must equal what is recomputed: InputError naming step, lane and site),
  // later ones are written.
  static std::unique_ptr<RunFileWriter> resume(std::string path, int64_t resume_from);
  ~RunFileWriter() override;

  void on_start(const RunDescription&) override;
  void on_step(const StepRecord&) override;
  void on_evaluation(const EvaluationRecord&) override;
  void on_checkpoint(const RunState&) override;
  void on_finish() override;

 private:
  struct Impl;
  RunFileWriter();
  std::unique_ptr<Impl> impl_;
};

// A failed write (disk full). The file is left as it was last flushed and stays readable.
class WriteError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Reads up to steps_complete. Datasets are read when asked for, whole steps at a time.
class RunFile {
 public:
  // Throws: InputError: not a run file, newer version, damaged, no step (unless `allow_empty`).
  explicit RunFile(const std::string& path, bool allow_empty = false);
  ~RunFile();
  RunFile(RunFile&&) noexcept;

  const std::string& path() const;
  int64_t steps() const;              // steps_complete
  const RunOptions& options() const;  // as the run was started, policy files' texts included
  const std::string& command_line() const;
  const std::map<std::string, std::string>& environment() const;
  const std::string& graph_json() const;
  const std::string& data() const;  // the data set in words
  // What `lockstep verify` found about the capture that was replayed: what stands beside it now, or
  // else when the run began. Nothing: never verified, or no capture.
  std::optional<Verification> verification() const;
  // The step's sums of products as JSON: see docs/run-file.md; empty for files of version 1.
  const std::string& products_json() const;
  const SiteTable& sites() const;
  const std::vector<LaneInfo>& lanes() const;   // the reference first
  int lane_index(std::string_view name) const;  // Throws: InputError with a did-you-mean

  std::vector<double> loss(int lane) const;  // [step]
  // [step]; empty in files that have none.
  std::vector<double> named_loss(int lane, std::string_view name) const;
  std::vector<double> gradient_norm(int lane) const;
  // [step * parameters], parameters as in the graph; empty where no capture was replayed.
  std::vector<double> gradient_norms(int lane) const;
  std::vector<double> lr(int lane) const;         // [step * parameter groups]
  std::vector<double> seconds(int lane) const;    // [step], of the lane's work
  std::vector<int32_t> attempts(int lane) const;  // [step]
  std::vector<Evaluation> evaluations(int lane) const;
  // [step] of one column: LaneInfo::scaler_count() scalers, behind them groups that skip by
  // themselves.
  std::vector<ScalerRecord> scalers(int lane, size_t column = 0) const;
  size_t scaler_columns(int lane) const;
  std::vector<double> scale(int lane, int64_t step) const;                                // [site]
  std::vector<uint64_t> count(int lane, std::string_view statistic, int64_t step) const;  // [site]
  std::vector<double> moment(int lane, std::string_view statistic, int64_t step) const;   // [site]
  std::vector<uint64_t> bits_hash(int lane, int64_t step) const;                          // [site]
  std::vector<int64_t> histogram_steps(int lane) const;             // steps with a full histogram
  std::vector<uint32_t> histogram(int lane, int64_t record) const;  // [site * 256]
  std::vector<int64_t> sums_steps(int lane) const;  // steps that sampled sums of products
  // What the sampled sums of products showed, over all steps that have samples, [site].
  std::vector<AccumulatorHealth> sums(int lane) const;
  // Sum over all steps (the 50-step sums joined), [site * 256].
  std::vector<uint64_t> total_histogram(int lane) const;
  // The steps that total_histogram covers: all of them, unless the run was killed inside a block
  // of 50.
  int64_t total_histogram_steps(int lane) const;
  std::vector<UpdateRecord> updates(int lane, int64_t step) const;  // [site]

  // Any quantity of one step, as many numbers as a row has; empty where files of this version lack
  // it, and where the step has no histogram. Requires: a row per step, or kHistograms.
  Numbers numbers_at(int lane, const Quantity& quantity, int64_t step) const;
  // Any narrow quantity over all steps, [step * width]; evaluations, steps and sums of histograms
  // as the functions above give them; of the sums of products the totals, [site].
  Numbers numbers(int lane, const Quantity& quantity) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Parameters and buffers to start a run from: PATH[:LANE] names a checkpoint (RUN.state) and a lane
// of it, without one the reference. Masters where the lane has them; all in FP32, by name.
// Throws: InputError: no such file, damaged, no such lane (listing those there are).
std::map<std::string, Tensor> read_start(std::string_view text);
// Of names, shapes and bits, as 16 hexadecimal digits: RunOptions::start_hash.
std::string start_hash(const std::map<std::string, Tensor>& start);
// Is the checkpoint that `text` names one of the run file `run_path`, by whatever path? Writing a
// new run there deletes it. Throws: InputError unless it is PATH[:LANE].
bool starts_from_run(std::string_view text, const std::string& run_path);

// The newest checkpoint of `run_path` that is not past `steps_complete`; nothing when there is
// none. Throws: InputError when a checkpoint is damaged.
std::optional<RunState> read_checkpoint(const std::string& run_path, int64_t steps_complete);

}  // namespace lockstep
