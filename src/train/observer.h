// Observers receive plain records after every step: statistics, never tensors. The run file, the
// progress bar and the tests are observers. An observer that throws ends the run.
#pragma once

#include "src/train/run_description.h"
#include "src/train/run_state.h"
#include "src/train/step_record.h"

namespace lockstep {

class Observer {
 public:
  virtual ~Observer() = default;
  virtual void on_start(const RunDescription&) {}
  virtual void on_step(const StepRecord&) {}
  virtual void on_evaluation(const EvaluationRecord&) {}
  // Called after every `checkpoint_every` steps and after the last one.
  virtual void on_checkpoint(const RunStateView&) {}
  virtual void on_finish() {}
};

}  // namespace lockstep
