// Are two step graphs one step, taken on batches of two shapes?
// A model traced for a short batch has the nodes that it has for a full one, but for those with
// nothing left to do there (OpDef::may_vanish). What stands at the same place has the same sites.
#pragma once

#include <map>
#include <string>

#include "src/graph/ir.h"
#include "src/graph/site.h"

namespace lockstep {

// For every node of `other` the node of `main` at its place: ids of `other` -> ids of `main`. Same
// op, layer and operands; attributes and shapes may differ. Nodes of `main` may be left over.
// Throws: InputError that names the first node that has no place, or the parameter or buffer that
// one of them lacks.
std::map<std::string, std::string> match_nodes(const Graph& main, const Graph& other);

// The sites of `other` under the ids of `main_sites`, with `nodes` from match_nodes: site k of both
// looks at the same place, with each graph's own node ids, values and shapes. A site that `other`
// lacks has node "".
SiteTable sites_numbered_as(const SiteTable& main_sites, const SiteTable& other_sites,
                            const std::map<std::string, std::string>& nodes);

}  // namespace lockstep
