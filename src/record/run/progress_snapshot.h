// The live view of a run: PATH.progress.json, renamed into place at most twice a second, so that no
// tool needs to read the open run file. A snapshot that cannot be written is skipped.
#pragma once

#include <chrono>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "src/record/run/run_reader.h"
#include "src/record/run/run_writer.h"
#include "src/train/observer.h"

namespace lockstep {

// The last skips of a lane that the snapshot names.
inline constexpr size_t kSnapshotSkips = 20;
// The findings of a lane that the snapshot tells.
inline constexpr size_t kSnapshotFindings = 8;
// The courses keep at most so many steps; when there are more, every other one is dropped.
inline constexpr size_t kSnapshotSteps = 400;

class ProgressSnapshot {
 public:
  // `first_seed`: of the file; the last seed is first_seed + options.seeds - 1.
  // `findings`: may be empty.
  ProgressSnapshot(std::string run_path, const RunDescription& run, uint64_t first_seed,
                   FindingsSoFar findings);
  // Before the first step of a new run: a snapshot of an older one is replaced.
  void start();
  // Before the first step of a resumed run: the course and the skips of the recorded steps before
  // `end`, so that the page goes on where it was.
  void recall(const RunFile& run, int64_t end);
  void step(const StepRecord& record);
  // "running" becomes "finished" (all steps of the last seed done) or "stopped"; between two seeds
  // it stays.
  void finish();

 private:
  struct Skip {
    int64_t step = 0;
    double scale = 1;
    int32_t culprit_site = -1;
  };
  struct Lane {
    std::string name;
    std::vector<std::string> scaler_losses;  // LaneDescription::scaler_losses
    std::vector<double> losses, scales;      // of `course_`, until the lane stopped
    int64_t skip_count = 0;
    std::vector<Skip> skips;  // the last ones
  };
  void add_to_course(const StepRecord& record);
  void write();
  nlohmann::ordered_json lane_json(size_t index) const;

  FindingsSoFar findings_;
  std::string path_;
  std::vector<Lane> lanes_;
  const SiteTable* sites_;               // of the run, which outlives this
  int64_t steps_, seed_number_, seeds_;  // seed_number_: from 1
  std::string state_ = "running";
  StepRecord last_;              // losses and scalers only
  std::vector<int64_t> course_;  // the steps that the lanes' courses have
  int64_t stride_ = 1;           // between them
  int64_t first_step_ = -1;      // of this process
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point written_{};
};

}  // namespace lockstep
