// Runs several lanes through the same steps: the reference and every other lane, node by node, on
// the same batch, at the same time where there are threads. Compares each lane's tensors with the
// reference's at every node, and passes plain records to observers. Knows nothing of files.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "src/core/tensor.h"
#include "src/execute/value_tap.h"
#include "src/train/observer.h"
#include "src/train/run_options.h"

namespace lockstep {

struct Capture;  // src/capture/capture.h

class LockstepRun {
 public:
  // Builds graph, sites and lanes. The reference lane "fp32" is always first, also when not listed.
  // Throws: InputError with all problems: model, data, lanes, policies, options.
  // `start`: parameters and buffers to begin with, by name, instead of fresh ones (start_from says
  // where they came from).
  explicit LockstepRun(RunOptions options, const std::map<std::string, Tensor>* start = nullptr);
  // Trains a capture: its batches, masks and loop. The options set the rest (lanes, mode, what to
  // record). Throws: InputError with everything that is not possible.
  LockstepRun(RunOptions options, Capture capture);
  ~LockstepRun();

  const RunDescription& description() const;
  void add_observer(Observer* observer);  // not owned; called in the order added

  // Copies the values of one site of this lane: before an observer's on_step(), tap.values are
  // those of its step. Not owned. Throws: InputError: no such lane, or the captured one, which has
  // only what its capture holds.
  void tap(std::string_view lane, ValueTap* tap);

  // Continues after state.steps_done steps instead of starting fresh. Observers receive every step
  // from there on.
  void restore(RunState state);
  RunState state() const;

  // Runs the remaining steps. Returns false when `stop` was set (Ctrl-C): the step in progress is
  // finished first and a checkpoint is written.
  bool run(const std::atomic<bool>& stop);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
