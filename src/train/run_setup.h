// Checks a run's options and finds the lanes and layers they name. Everything is checked before the
// first step; all problems are reported at once.
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

// Counts, intervals and limits.
void check_run_numbers(const RunOptions& options, ProblemList& problems);
// Options that only a capture takes: a built-in model would ignore them silently.
void refuse_options_of_captures(const RunOptions& options, ProblemList& problems);
// The lanes in run order, the reference first; `options` is changed to this order, and gets the
// number of workers that a policy states.
// Throws: InputError with all problems found so far.
std::vector<LaneDescription> describe_lanes(RunOptions& options, bool is_capture,
                                            ProblemList& problems);
// Replaces fresh weights and buffers by given ones: all of them, by name and shape.
void take_start(const std::map<std::string, Tensor>& start, std::map<std::string, Tensor>& initial,
                ProblemList& problems);
// Replaces numbers of the loop in every step and group: the optimizer's by name, and "clip_norm".
// Throws: InputError: a name that the optimizer lacks.
void change_loop(const HyperValues& changes, Capture& capture);
// Sets the options that a capture decides: steps (0: all of them), batch (the main graph's),
// micro-batches (of the step that has most), optimizer, groups, clipping. Throws: InputError, e.g.
// for more steps than there are without `cycle`.
void take_loop_options(const Capture& capture, CapturedLoop& loop, RunOptions& options);
// Moves every weight of the graph by one ulp, RunOptions::nudge; 0 changes nothing.
void nudge_weights(const Graph& forward, uint64_t nudge, std::map<std::string, Tensor>& initial);
// Frozen layers, and the options of batch_norm.
void change_layers(const RunOptions& options, Graph& forward, ProblemList& problems);

}  // namespace lockstep
