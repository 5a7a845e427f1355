// `replay --save-values FILE.npy --at "STEP LANE SITE"`: the values of one site in one step, for
// NumPy.
#pragma once

#include <string>

#include "src/core/error.h"
#include "src/train/lockstep.h"
#include "src/train/observer.h"

namespace lockstep {

class SavedValues : public Observer {
 public:
  // SITE: a label as reports print it, or "#ID".
  // Throws: InputError: `at` is not of this form, or names what the run does not have.
  SavedValues(std::string path, const std::string& at, LockstepRun& run);
  // Throws: InputError: the file cannot be written, the lane has no such value in the step, or the
  // step has passes of different shapes.
  void on_step(const StepRecord& record) override;

 private:
  std::string path_;
  int64_t step_ = 0;
  std::string lane_name_;
  size_t lane_ = 0;
  ValueTap tap_;
};

}  // namespace lockstep
