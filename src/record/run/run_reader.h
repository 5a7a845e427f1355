// Reads run files: the records that training gave, and what describes the run. quantities.h lists
// what is recorded of a lane, docs/run-file.md describes the layout. Knows nothing of training.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/capture/script_line.h"
#include "src/core/error.h"
#include "src/graph/site.h"
#include "src/record/capture/verification.h"
#include "src/record/run/lane_info.h"
#include "src/record/run/quantities.h"
#include "src/train/run_options.h"
#include "src/train/step_record.h"

namespace lockstep {

inline constexpr int kRunFormatVersion = 4;

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

// Reads one seed's run up to steps_complete. Datasets are read on demand, whole steps at a time;
// every row is compared with its checksum. All members throw DamagedFile for rows that differ.
class RunFile {
 public:
  // Throws: InputError: not a run file, newer version, damaged, no step (unless `allow_empty`).
  // `seed`: one of the file's seeds, by default its first. Throws: InputError for any other, and
  // for a monitor's file, which nothing was replayed for: of_any_run() opens it, too.
  explicit RunFile(const std::string& path, bool allow_empty = false,
                   std::optional<uint64_t> seed = std::nullopt);
  static RunFile of_any_run(const std::string& path, bool allow_empty = false,
                            std::optional<uint64_t> seed = std::nullopt);
  // Of a file with rows that do not have their checksums: the steps before the first of them.
  // Throws: as the constructor. Cost: reads everything.
  static RunFile read_whole_steps(const std::string& path, std::optional<uint64_t> seed);
  ~RunFile();
  RunFile(RunFile&&) noexcept;

  // The checksum of the description of a run that is being recorded (run_checksum.h). `file`:
  // HDF5's identifier of the open file. `seed`: absent for its first. Throws: hdf5::Error.
  static uint64_t compute_description_checksum(int64_t file, std::optional<uint64_t> seed);

  const std::string& path() const;
  // Whether rows have checksums: an earlier version wrote them without.
  bool has_checksums() const;
  // The damage after which read_whole_steps() reads nothing; empty: none.
  const std::string& damage() const;
  int64_t steps() const;  // steps_complete
  // Whether the step has statistics of sites (RunOptions::measuring), and how many steps have.
  bool is_measured(int64_t step) const;
  int64_t measured_steps() const;
  // The last measured step up to this one; -1: none.
  int64_t last_measured(int64_t step) const;
  const RunOptions& options() const;  // as the run was started, policy files' texts included
  // The seeds of all runs in the file, in the order in which they were recorded; the last may be
  // unfinished.
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
  const ScriptLines& lines() const;                 // RunDescription::lines
  const std::vector<std::string>& watched() const;  // RunDescription::watched
  const SiteTable& sites() const;
  const std::vector<LaneInfo>& lanes() const;                 // the reference first
  bool is_live() const { return lanes().front().is_live(); }  // a monitor's: of_any_run()
  int lane_index(std::string_view name) const;  // Throws: InputError with a did-you-mean

  // A step as training told it (src/record/run/play.h goes through all of them). A lane that has
  // died has sites that were not measured. Not in the file, and left at their defaults: histograms
  // of steps without one, kinds of a device's products (device() has them).
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
  // The work of the lane's device in all complete steps; its kinds of products in the order in
  // which they appeared.
  DeviceWork device(int lane) const;
  std::vector<int64_t> histogram_steps(int lane) const;  // steps with a full histogram
  std::vector<int64_t> sums_steps(int lane) const;       // steps that sampled sums of products
  // Sum over all steps (the 50-step sums joined), [site * 256].
  std::vector<uint64_t> total_histogram(int lane) const;
  // The steps that total_histogram covers: all of them, unless a kill interrupted a block of 50.
  int64_t total_histogram_steps(int lane) const;

  // The paths of this seed, as docs/run-file.md names them: "lanes/fp32/loss", links escaped.
  std::vector<std::string> dataset_paths() const;
  // Compares every row of this seed's run with its checksum. The description's was compared when
  // the file was opened.
  struct Proof {
    int64_t rows = 0;                   // compared
    std::vector<std::string> problems;  // the first damaged row of every dataset
  };
  Proof prove() const;

  // Any quantity of one step, as many numbers as a row has; empty if files of this version lack it,
  // or if the step has no histogram. Requires: a row per step, or kHistograms.
  Numbers numbers_at(int lane, const Quantity& quantity, int64_t step) const;
  // Any narrow quantity over all steps, [step * width]. Evaluations, steps and sums of histograms
  // are as from the functions above; sums of products are totals, [site]; effects on the loss are
  // of every sample, [sample * sites]. Requires: not kHistograms, which numbers_at has by step.
  Numbers numbers(int lane, const Quantity& quantity) const;

 private:
  struct Impl;
  RunFile();
  void open(const std::string& path, bool allow_empty, std::optional<uint64_t> seed);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
