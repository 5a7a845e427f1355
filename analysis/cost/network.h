// What a search knows of the network, from the run file of its first replay: the step graph, its
// layers, which of them are linear, and what a policy would cost on a GPU.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "analysis/candidates/candidate.h"
#include "analysis/candidates/format_assignment.h"
#include "analysis/cost/gpu_cost.h"
#include "src/graph/ir.h"
#include "src/graph/site.h"
#include "src/record/run/run_reader.h"

namespace lockstep {

struct Network {
  Graph step;
  SiteTable sites;
  std::vector<std::string> layers;  // that may use a 16-bit format, in the order of execution
  std::vector<std::string> linear;  // with an op to which narrow formats apply
  // Linear layers whose products do not fill FP8's tiles, with the extents that do not: "k is 10".
  std::map<std::string, std::string> unaligned;
  MemoryFacts memory;  // of the reference
};

Network read_network(const RunFile& run);

// An estimate of a step under `policy`; `memory`: of the lane.
StepCost cost_of(const Network& network, const Policy& policy, const MemoryFacts& memory,
                 const Gpu& gpu);
// Multiply-adds of the products of each layer, times the bits of a factor in the policy's formats:
// for cases in which formats take the same time on a GPU.
std::map<std::string, double> bit_operations(const Network& network, const Policy& policy);

// What casts between two of `layers` cost, where one is in FP32 and the other in 16 bits: both ways
// of every value that one makes and the other reads, and of its gradient.
std::vector<CastEdge> cast_edges(const Network& network, const std::vector<std::string>& layers,
                                 const Gpu& gpu);

}  // namespace lockstep
