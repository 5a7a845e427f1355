// What does the training loop of a capture do in each step?
// The optimizer's groups with the numbers of every step, the divisors of losses, the scaler's
// start. Made from a capture, and refused where a replay could not do the same.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "src/capture/capture.h"
#include "src/update/parameter_groups.h"

namespace lockstep {

struct CapturedLoop {
  std::vector<std::vector<OptimizerGroup>> groups;  // by captured step, then by group
  std::vector<std::vector<double>> loss_divisor;    // by captured step, then by micro-batch
  // Capture::graphs in use, by number: the main one, whose sites the run has, then the others.
  std::vector<size_t> graphs;
  std::vector<std::vector<size_t>> graph_of;  // by step and micro-batch: index into graphs
  std::map<std::string, size_t> group_of;     // by parameter, where it is in one
  std::vector<int64_t> steps_taken;           // by group, before the first captured step
  bool clips_scaled = false;
  std::optional<CapturedScaler> scaler;

  // The first step by which both the main graph and graphs[index] have been used.
  int64_t first_step(size_t index) const;
  // Behind the last captured step the first one follows again (--cycle).
  size_t at(int64_t step) const { return static_cast<size_t>(step) % groups.size(); }
};

// "(6, 1, 8, 8), (6)": the batch that a graph is for.
std::string batch_text(const Graph& graph);

// Of the first `steps` captured steps (0: all). Throws: InputError with everything that a replay
// cannot do.
CapturedLoop make_captured_loop(const Capture& capture, int64_t steps);

// The numbers of the graphs that the first `steps` captured steps run through (0: all steps). First
// the main one, in which most of the step is seen: it has the most nodes (none had nothing to do),
// then the most elements, then comes first; the others in their order.
std::vector<size_t> graphs_in_use(const Capture& capture, int64_t steps);
// A forward graph as a replay trains it: parameters that no group steps need no gradient.
Graph captured_graph(const Capture& capture, size_t number);
// Where lanes begin: parameters and buffers by name, optimizer states as "state/NAME/INDEX".
Tensors captured_start(const Capture& capture, const CapturedLoop& loop);

}  // namespace lockstep
