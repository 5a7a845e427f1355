// The live view of a run: PATH.progress.json, renamed into place at most twice a second, so that no
// tool needs to read the open run file. A snapshot that cannot be written is skipped.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "src/train/observer.h"

namespace lockstep {

class ProgressSnapshot {
 public:
  // `first_seed`: of the file; the last seed is first_seed + options.seeds - 1.
  ProgressSnapshot(std::string run_path, const std::vector<LaneDescription>& lanes,
                   const RunOptions& options, uint64_t first_seed);
  void step(const StepRecord& record);
  // "running" becomes "finished" (all steps of the last seed done) or "stopped"; between two seeds
  // it stays.
  void finish();

 private:
  void write();
  std::string path_;
  std::vector<std::string> lane_names_;
  std::vector<std::vector<std::string>> scaler_losses_;  // by lane, LaneDescription::scaler_losses
  int64_t steps_, seed_number_, seeds_;                  // seed_number_: from 1
  std::string state_ = "running";
  StepRecord last_;  // losses and scalers only
  std::chrono::steady_clock::time_point written_{};
};

}  // namespace lockstep
