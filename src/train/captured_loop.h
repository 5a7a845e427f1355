// What does the training loop of a capture do in each step?
// The optimizer's groups with the numbers of every step, the factors of losses, the scaler's start.
// Made from a capture, and refused where a replay could not do the same.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "src/train/capture.h"
#include "src/train/parameter_groups.h"

namespace lockstep {

struct CapturedLoop {
  std::vector<std::vector<OptimizerGroup>> groups;  // by captured step, then by group
  std::vector<std::vector<double>> loss_mult;       // by captured step, then by micro-batch
  std::map<std::string, size_t> group_of;           // by parameter, where it is in one
  std::vector<int64_t> steps_taken;                 // by group, before the first captured step
  bool clips_scaled = false;
  std::optional<CapturedScaler> scaler;

  // Behind the last captured step the first one follows again (--cycle).
  size_t at(int64_t step) const { return static_cast<size_t>(step) % groups.size(); }
};

// Of the first `steps` captured steps. Throws: InputError with everything that a replay cannot do.
CapturedLoop make_captured_loop(const Capture& capture, int64_t steps);

// Brings the options in line with the capture: steps (0: all of them), batch, micro-batches,
// optimizer, groups, clipping. Throws: InputError, e.g. more steps than there are without `cycle`.
void take_loop_options(const Capture& capture, RunOptions& options);

// The forward graph that a replay trains: parameters that no group steps need no gradient.
Graph captured_graph(const Capture& capture);
// Where lanes begin: parameters and buffers by name, optimizer states as "state/NAME/INDEX".
Tensors captured_start(const Capture& capture, const CapturedLoop& loop);

}  // namespace lockstep
