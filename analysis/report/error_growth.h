// Shows how errors grow through the depth of the network.
// In one step, layer by layer in execution order, of the layer's last output:
//
//   total   sqrt(err_sq / ref_sq): against the reference; what came in from earlier layers counts
//   local   sqrt(round_err_sq / sum_sq): the rounding of this output alone
//
// The step is the first one in which lane and reference have the same weights and nothing is
// infinite, so that the total is the step's own.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "analysis/run/run_view.h"
#include "src/train/observer.h"

namespace lockstep {

struct LayerError {
  std::string layer;
  int32_t site = -1;
  double total = 0, local = 0;  // relative; NaN: not measured
};
struct ErrorGrowth {
  int64_t step = 0;
  std::vector<LayerError> forward, backward;  // activations; gradients of activations
};

// Gathers the errors of one lane that is not the reference.
class ErrorGrowthTally : public Observer {
 public:
  // What `run` refers to must outlive the object.
  ErrorGrowthTally(const RunView& run, int lane) : run_(run), lane_(lane) {}
  void on_step(const StepRecord& record) override;
  // Nothing: no step was found.
  const std::optional<ErrorGrowth>& growth() const { return growth_; }

 private:
  RunView run_;
  int lane_;
  std::optional<ErrorGrowth> growth_;
};

}  // namespace lockstep
