// Chooses a format for each layer: the cheapest choice for every total score that is allowed.
// A multiple-choice knapsack with costs on edges:
//
//   minimise    sum over layers of cost(choice) + sum over edges whose ends lie on different sides
//   subject to  sum over layers of score(choice) <= limit
//
// for all limits at once: the result is the Pareto frontier of (score, cost). Layers are taken in
// order; a partial choice remembers the sides of the layers that still have an edge to a later one
// (Nemhauser & Ullmann 1969 for each combination of those sides). Exact while no combination has
// more than kMostPartials partial choices that nothing beats, and no more than kMostOpenLayers
// layers wait for a later one.
#pragma once

#include <cstddef>
#include <vector>

namespace lockstep {

struct FormatOption {
  double cost = 0, score = 0;  // at least 0
  int side = 0;                // edges cost where the sides of their ends differ: casts
};
struct CastEdge {
  size_t from = 0, to = 0;  // layers, from < to
  double cost = 0;
};
struct AssignmentProblem {
  std::vector<std::vector<FormatOption>> layers;  // each has an option
  std::vector<CastEdge> edges;
};
struct Assignment {
  std::vector<size_t> choice;  // by layer: the option
  double cost = 0, score = 0;
};

// The most partial choices that are kept; if there are more, every second one is dropped.
inline constexpr size_t kMostPartials = 4096;
// At most so many layers may wait for a later end of an edge; of more, the cheapest edges are left
// out while choosing (costs are always those of all edges).
inline constexpr size_t kMostOpenLayers = 10;

// From the lowest score to the lowest cost. Requires: a layer.
std::vector<Assignment> assignment_frontier(const AssignmentProblem& problem);

// The cost and score of one choice, all edges included.
Assignment priced(const AssignmentProblem& problem, std::vector<size_t> choice);

}  // namespace lockstep
