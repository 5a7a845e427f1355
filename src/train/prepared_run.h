// Everything that a run builds before its first step: model, data, step graph, sites and lanes,
// from the run's options or from a capture.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/capture/captured_loop.h"
#include "src/data/dataset.h"
#include "src/graph/ir.h"
#include "src/graph/site.h"
#include "src/models/model.h"
#include "src/train/evaluate.h"
#include "src/train/lane/lane.h"
#include "src/train/run_description.h"
#include "src/train/run_options.h"

namespace lockstep {

struct PreparedRun {
  // See LockstepRun. Throws: InputError with all problems.
  PreparedRun(RunOptions wanted, const std::map<std::string, Tensor>* start);
  PreparedRun(RunOptions wanted, Capture from);
  PreparedRun(const PreparedRun&) = delete;  // its parts hold each other's addresses
  PreparedRun& operator=(const PreparedRun&) = delete;

  RunOptions options;
  const Model* model = nullptr;  // null: a capture
  std::unique_ptr<DataSet> data;
  std::optional<Capture> capture;  // without its start: the lanes own that
  CapturedLoop loop;               // the capture's
  Graph graph;
  SiteTable sites;
  std::vector<StepGraph> other_shapes;
  LaneContext context;
  std::vector<std::unique_ptr<Lane>> lanes;  // the reference first
  std::unique_ptr<Evaluator>
      evaluator;  // null: RunOptions::held_out, or a capture, which has no such examples
  RunDescription description;

 private:
  // `forward`: the main graph, then the same model for batches of other shapes or on other paths.
  void make_lanes(std::vector<Graph> forward, const std::map<std::string, Tensor>& initial);
  void add_graphs(const std::vector<Graph>& forward, const StateShapes& states_of);
  Graph step_of(const Graph& forward) const;
};

}  // namespace lockstep
