// Computes one captured step from a given state.
// Runs forward and backward of every micro-batch on the captured batches and masks, with the
// StepRunner that training uses, but no optimizer.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "emulation/kernels/active_kernels.h"
#include "src/capture/capture.h"
#include "src/execute/step_runner.h"
#include "src/graph/site.h"
#include "src/policy/policy.h"

namespace lockstep {

struct ComputedStep {
  double loss = 0;    // the mean over micro-batches
  Tensors gradients;  // sums over micro-batches, each times loss_mult; scaled
  Tensors buffers;    // after the last micro-batch
  // Of parts, by micro-batch: watched values by name, and gradients of inputs by path; scaled.
  std::vector<Tensors> watched, input_gradients;
};

// Called around every forward node of a micro-batch: before it runs (done false), and after.
using NodeVisit =
    std::function<void(size_t micro, const Node& node, ValueStore& values, bool done)>;

class CapturedStepRunner {
 public:
  // Both must outlive the runner. `is_fp64`: the truth lane; then `policy` is FP32's.
  CapturedStepRunner(const Capture& capture, const Policy& policy, bool is_fp64,
                     const KernelSet& (*kernels)() = active_kernels);

  // Throws: InputError where less memory is free than a step takes.
  void require_memory(const CapturedStep& step);

  // `values`: parameters and buffers. `seed`: of stochastic rounding. Throws: InputError from
  // lowering.
  ComputedStep run(const CapturedStep& step, const Tensors& values, double loss_scale = 1,
                   const NodeVisit& visit = {}, uint64_t seed = 0);
  // The same step by other kernels: every number that a node leaves in FP32 (with `is_fp64`: in
  // FP64) is some ulps off, up or down by a seeded sign. Functions and sums differ between
  // libraries.
  struct Moves {
    uint64_t signs = 0;  // the seed
    float ulps = 1;
  };
  ComputedStep run_moved(const CapturedStep& step, const Tensors& values, double loss_scale,
                         Moves moves, const NodeVisit& visit = {});

 private:
  struct GraphRunner {
    Graph graph;
    SiteTable sites;
    std::unique_ptr<StepRunner> runner;
    Batch batch;                   // of the micro-batch in progress
    std::vector<bool> fp32_nodes;  // those whose op leaves FP32 numbers
  };
  // After every node.
  using AfterNode = std::function<void(size_t micro, int node, GraphRunner& of_graph)>;
  ComputedStep run_nodes(const CapturedStep& step, const Tensors& values, double loss_scale,
                         uint64_t seed, const NodeVisit& visit, const AfterNode& after);
  GraphRunner& runner_of(int64_t graph);
  static void keep_watched(const GraphRunner& of_graph, const Node& node, ComputedStep& out);

  const Capture& capture_;
  const Policy& policy_;
  bool is_fp64_;
  const KernelSet& (*kernels_)();
  std::map<int64_t, GraphRunner> runners_;  // by graph
};

}  // namespace lockstep
