// The training loop of a capture: the optimizer's groups with the numbers of every step, the
// divisors of losses, the scaler's start. A capture that a replay could not repeat is refused.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "src/capture/capture.h"
#include "src/update/parameter_groups.h"
#include "src/update/recorded_update.h"

namespace lockstep {

struct CapturedLoop {
  std::vector<std::vector<OptimizerGroup>> groups;  // by captured step, then by group
  std::vector<std::vector<double>> loss_divisor;    // by captured step, then by micro-batch
  // Indices of Capture::graphs in use: the main one, whose sites the run has, then the others.
  std::vector<size_t> graphs;
  std::vector<std::vector<size_t>> graph_of;  // by step and micro-batch: index into graphs
  std::map<std::string, size_t> group_of;     // by parameter, where it is in one
  std::vector<int64_t> steps_taken;           // by group, before the first captured step
  // By parameter: the steps of its group that left it out because it had no gradient.
  std::map<std::string, int64_t> missed;
  // By captured step, then by parameter: updates that no rule repeats.
  std::vector<std::map<std::string, RecordedUpdate>> updates;
  bool clips_scaled = false;
  std::optional<CapturedScaler> scaler;
  std::string state_codes;    // of the first state, as Capture::state_codes
  bool lacks_scaler = false;  // autocast to a format of small range, without a GradScaler

  std::vector<size_t> order;  // RunOptions::captured_order

  // After the last captured step the first one follows again (--cycle).
  size_t at(int64_t step) const {
    const auto s = static_cast<size_t>(step);
    return order.empty() ? s % groups.size() : order[s % order.size()];
  }
};

// "(6, 1, 8, 8), (6)": the batch that a graph is for.
std::string batch_text(const Graph& graph);

// The loop of the first `steps` captured steps (0: all). Throws: InputError with everything that a
// replay cannot repeat.
CapturedLoop make_captured_loop(const Capture& capture, int64_t steps);

// The indices of the graphs that the first `steps` captured steps use (0: all steps). The main one
// is first: it has the most nodes (a graph without nodes computes nothing), then the most elements,
// then the lowest index. The others follow in their order.
std::vector<size_t> graphs_in_use(const Capture& capture, int64_t steps);
// A forward graph as a replay trains it: parameters in no group need no gradient.
Graph captured_graph(const Capture& capture, size_t number);
// Moves the recorded weights of all steps into loop.updates. Before captured_start.
void take_recorded_updates(Capture& capture, CapturedLoop& loop);
// The lanes' first state: parameters and buffers by name, optimizer states as "state/NAME/INDEX".
Tensors captured_start(CapturedState start, const CapturedLoop& loop);

}  // namespace lockstep
