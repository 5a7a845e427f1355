// Shows how far a run is: on a terminal one line, redrawn; otherwise a plain line after every tenth
// of the steps. Goes to stderr, so that stdout holds results only.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "src/train/observer.h"

namespace lockstep {

class Progress : public Observer {
 public:
  // `first_step`: where a resumed run starts. `seed_text`: "seed 2/3", or "" for the only one.
  Progress(int64_t first_step, int64_t step_count, std::string seed_text);
  void on_start(const RunDescription& run) override;
  void on_step(const StepRecord& step) override;
  void on_finish() override;

 private:
  std::string status(const StepRecord& step) const;
  std::string time_left(int64_t steps_done) const;

  int64_t first_step_, step_count_;
  std::string seed_text_;
  bool terminal_;
  int64_t next_line_ = 0;  // steps done at which the next plain line is due
  bool line_open_ = false;
  std::vector<std::string> lane_names_;
  std::vector<size_t> scaler_counts_;  // by lane
  std::chrono::steady_clock::time_point start_, last_drawn_;
};

}  // namespace lockstep
