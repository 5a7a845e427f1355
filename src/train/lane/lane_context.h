// What all lanes of a run share: the step graph and, for every parameter, what follows from the
// run's options: its group, its sites, and the numbers of each step.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "src/capture/captured_loop.h"
#include "src/graph/ir.h"
#include "src/graph/site.h"
#include "src/graph/watched.h"
#include "src/train/run_options.h"
#include "src/update/parameter_groups.h"

namespace lockstep {

// The step on batches of one shape.
struct StepGraph {
  Graph graph;
  SiteTable sites;
};

// What all lanes of a run share; must outlive them.
struct LaneContext {
  struct Update {  // one parameter's group and sites, -1 where there is none
    size_t group = 0;
    int32_t update = -1, master = -1, weight = -1;
    // Sites of the all-reduce by backward pass, if there are several workers.
    std::vector<int32_t> entering, reduced;
    std::vector<int32_t> states;
  };
  const Graph* step_graph = nullptr;
  const SiteTable* sites = nullptr;
  const RunOptions* options = nullptr;
  std::vector<OptimizerGroup> groups;
  std::map<std::string, Update> updates;  // by parameter name
  std::map<std::string, int32_t> stored;  // storage sites by value id
  std::vector<std::string> losses;        // loss_names()
  // By backward pass and site: whether its values lead to or come from that pass's loss.
  std::vector<std::vector<bool>> sites_of_pass;
  const CapturedLoop* loop = nullptr;  // of a capture; null: the options define a step
  // The step on batches of other shapes (numbers 1 and up in CapturedLoop::graph_of). Their sites
  // are numbered as in `sites`.
  std::span<const StepGraph> other_shapes = {};
  std::vector<WatchedValue> watched = {};

  // The numbers and the learning rate of a group in a step; NaN where updates are recorded.
  const HyperNumbers& numbers(size_t group, int64_t step) const;
  double lr(size_t group, int64_t step) const;
  // What PyTorch did to a parameter's weights in a step, where no rule repeats it; else null.
  const RecordedUpdate* recorded(const std::string& parameter, int64_t step) const;
  int64_t micro_batches(int64_t step) const;
  // Which graph a micro-batch runs through: 0 is `step_graph`, then `other_shapes`.
  size_t graph_of(int64_t step, int64_t micro_batch) const;
  const Graph& graph(size_t number) const;
  // The divisor of a micro-batch's loss before backward.
  double loss_divisor(int64_t step, int64_t micro_batch) const;
};
LaneContext make_lane_context(const Graph& step_graph, const SiteTable& sites,
                              const RunOptions& options, const CapturedLoop* loop = nullptr,
                              std::span<const StepGraph> other_shapes = {});

}  // namespace lockstep
