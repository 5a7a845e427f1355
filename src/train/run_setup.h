// What in a run's options cannot be, and which lanes and layers do they mean?
// Everything is checked before the first step, and all problems are told at once.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "src/capture/captured_loop.h"
#include "src/core/error.h"
#include "src/graph/ir.h"
#include "src/train/run_description.h"
#include "src/train/run_options.h"

namespace lockstep {

// Collects what `make` throws instead of ending at the first problem.
template <typename Make>
void collect(ProblemList& problems, Make make) {
  try {
    make();
  } catch (const InputError& error) {
    for (const std::string& problem : error.problems()) problems.add(problem);
  }
}

// Counts, intervals and limits.
void check_run_numbers(const RunOptions& options, ProblemList& problems);
// The lanes in the order in which they run, which `options` takes over: the reference first.
// Throws: InputError with all that was found so far.
std::vector<LaneDescription> describe_lanes(RunOptions& options, ProblemList& problems);
// Weights and buffers from elsewhere in place of fresh ones: all of them, by name and shape.
void take_start(const std::map<std::string, Tensor>& start, std::map<std::string, Tensor>& initial,
                ProblemList& problems);
// Brings the options in line with a capture: steps (0: all of them), batch (the main graph's),
// micro-batches (of the step with most), optimizer, groups, clipping. Throws: InputError, e.g. more
// steps than there are without `cycle`.
void take_loop_options(const Capture& capture, const CapturedLoop& loop, RunOptions& options);
// Frozen layers, and what is said of batch_norm.
void change_layers(const RunOptions& options, Graph& forward, ProblemList& problems);

}  // namespace lockstep
