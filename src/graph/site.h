// The table of sites of a step: the places where numbers are measured, each with layer, op, role
// and point. It is made from the step graph before lowering, so it is the same in every lane; lanes
// differ only in the sites for which they have statistics.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "src/graph/ir.h"

namespace lockstep {

// kStorage: a weight, buffer, constant or input is rounded to the format it is stored in.
enum class Point : uint8_t { kOperand, kOutput, kAccumulator, kStorage };
std::string_view to_string(Point point);
Point find_point(std::string_view name);

struct Site {
  int32_t id;  // index into the table = execution order
  std::string layer, op;
  Role role;
  Point point;
  Shape shape;
  // Id of the node. Not nodes of the graph: "storage:p:PARAM", "storage:b:BUFFER",
  // "storage:c:CONSTANT" and "storage:INPUT" (its path in the batch) for storage,
  // "all_reduce:PARAM" for the gradients that workers exchange, "optimizer:PARAM" for update sites.
  std::string node;
  int index;                   // of the operand or output; of all_reduce sites the backward pass
  std::string value;           // value id
  std::vector<int32_t> feeds;  // ids of the sites that feed this one
  std::string source_line;
  std::string torch_op;  // "aten.addmm.default"; "" where the graph is not a captured one
  // True if the value includes the loss scale (backward pass, before unscaling).
  bool scaled;
  // True where the graph itself writes infinities, or numbers too large for FP16: a masked score.
  // They are taken for intended while a run is recorded: they keep no histogram and are no culprit.
  // The findings and the report consult the reference instead.
  bool stat_exempt;

  // "conv1 conv2d_backward_weight grad_weight output"
  std::string label() const;
};

struct SiteTable {
  std::vector<Site> sites;
  // The site of a node's operand/output/accumulator, or -1.
  int32_t find(std::string_view node, Point point, int index) const;
  // Per parameter: sites with node "optimizer:PARAM": role kUpdate (operand 0, the update dw),
  // kOptimizerState (one per state tensor), kMasterWeight and kWeight (outputs after the update).
  int32_t find_update(std::string_view parameter, Role role, int index = 0) const;
  // Sites with node "all_reduce:PARAM": the workers' gradients that enter the sum (operand, shape
  // (W, ...)), or its result (output). Only with several workers; with several backward passes each
  // pass has its own.
  int32_t find_all_reduce(std::string_view parameter, Point point, int pass = 0) const;
  // The storage sites by value id. They are the first of the table, so that `feeds` of later sites
  // lead to them. Loss seeds have none.
  std::map<std::string, int32_t> storage_sites() const;
};

// The shapes of a parameter's state tensors.
using StateShapes = std::function<std::vector<Shape>(const Parameter&)>;

// Integer values have no sites. `optimizer_states` is the number of state tensors per parameter, in
// its shape, or a function that returns their shapes. `step` is the graph of one of `workers`
// workers.
SiteTable make_sites(const Graph& step, int optimizer_states);
SiteTable make_sites(const Graph& step, const StateShapes& optimizer_states, int64_t workers = 1);

// Begins the nodes of a monitor's sites: no graph was made of the run that it watched.
inline constexpr std::string_view kLiveNode = "live:";
// Whether the site belongs to a node of the step graph, or of another path's graph.
bool is_in_graph(const Site& site);
// A node of path `number` through the model without a counterpart in the step graph, and whether
// the site belongs to such a node.
std::string node_of_other_path(size_t number, std::string_view id);
bool is_on_other_path(const Site& site);
// The parameter of a site that is not in the graph: "fc1.weight" of "optimizer:fc1.weight".
std::string parameter_of(const Site& site);
inline bool is_storage(const Site& site) {
  return site.point == Point::kStorage;
}
// "weight fc1.weight", "buffer bn1.running_var", "constant mask", "input images" of a storage site.
std::string stored_name(const Site& site);

}  // namespace lockstep
