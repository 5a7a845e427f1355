// Tells whether two step graphs are the same step for batches of two shapes.
// A model traced for a short batch has the same nodes as for a full batch, except those that have
// nothing to do there (OpElements::may_vanish). Nodes at the same place have the same sites. A step
// that took another path through the model has nodes of its own; the table of sites is one for all.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "src/graph/ir.h"
#include "src/graph/site.h"

namespace lockstep {

// For every node of `other` the node of `main` at its place: ids of `other` -> ids of `main`. Same
// op, layer and operands; attributes and shapes may differ. Nodes of `main` may be left over.
// Throws: InputError that names the first node without a counterpart, or the parameter or buffer
// that one graph lacks.
std::map<std::string, std::string> match_nodes(const Graph& main, const Graph& other);

// Finds counterparts of nodes on other paths through the model: the k-th call of an op in a layer
// is the k-th call in all of them.
class PathNodes {
 public:
  explicit PathNodes(const Graph& main);
  // For every node of `other` its counterpart, as in match_nodes. Where no graph so far has one it
  // is node_of_other_path, which is not a node of `main`.
  std::map<std::string, std::string> match(const Graph& other, size_t number);

 private:
  std::map<std::string, std::string> known_;  // by place in the model
};

// Appends the sites of `other` that have no place in `table` yet; `nodes` from one of the above.
void add_sites(SiteTable& table, const SiteTable& other,
               const std::map<std::string, std::string>& nodes);

// The sites of `other` with the ids of `main_sites`; `nodes` is from match_nodes. Site k of both
// tables is at the same place, with each graph's own node ids, values and shapes. A site that
// `other` lacks has node "".
SiteTable sites_numbered_as(const SiteTable& main_sites, const SiteTable& other_sites,
                            const std::map<std::string, std::string>& nodes);

// Compares the tables of two runs of one step: the first site that has another place or shape, or
// that one of them lacks. Nothing: the tables are the same.
std::optional<size_t> first_other_site(const SiteTable& a, const SiteTable& b);

}  // namespace lockstep
